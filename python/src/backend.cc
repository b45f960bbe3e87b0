// SPDX-License-Identifier: Apache-2.0
// Backend, and what info() says.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "backend_object.h"
#include "bindings.h"
#include "fail.h"
#include "names.h"
#include "quire/registry.h"
#include "quire/version.h"
#include "registry/plugin.h"

namespace quire::python {
namespace {

void init_backend(BackendObject* self, const std::string& name, int num_threads,
                  const std::string& isa, const std::vector<int>& cpus) {
  auto shared = std::make_shared<SharedBackend>(
      name, make_backend(name, {.num_threads = num_threads, .isa = isa, .cpus = cpus}));
  new (self) BackendObject(std::move(shared), true);
}

nb::dict support_dict(const Support& support) {
  nb::dict result;
  result["ok"] = support.ok();
  result["reasons"] = support.reasons;
  result["fused_append"] = support.fused_append;
  result["own_rounding"] = support.own_rounding;
  result["clears_tails"] = support.clears_tails;
  return result;
}

nb::dict backend_info(const BackendObject& self) {
  const BackendInfo info = self.shared->backend->info();
  nb::dict result;
  result["name"] = info.name;
  result["version"] = info.version;
  result["isa"] = info.isa;
  result["device"] = device_kind_name(info.device.kind);
  result["device_index"] = info.device.index;
  result["batch_invariant"] = info.batch_invariant;
  return result;
}

nb::dict workspace_dict(const BackendObject& self, const AttentionSpec& spec,
                        const BatchBounds& bounds) {
  const WorkspaceSize size = self.shared->backend->workspace(spec, bounds);
  nb::dict result;
  result["host_bytes"] = size.host_bytes;
  result["device_bytes"] = size.device_bytes;
  return result;
}

nb::dict module_info() {
  nb::dict result;
  result["version"] = version();
  result["plugin_folders"] = plugin_folders();
  nb::list backends;
  for (const BackendEntry& entry : backend_table()) {
    Availability availability;
    {
      const nb::gil_scoped_release release;  // libraries of vendors are loaded
      availability = entry.probe();
    }
    nb::dict row;
    row["name"] = entry.name;
    row["summary"] = entry.summary;
    row["automatic"] = entry.automatic;
    row["plugin"] = entry.plugin;
    row["available"] = availability.available;
    row["version"] = availability.version;
    row["reasons"] = availability.reasons;
    row["isa_levels"] = availability.available ? entry.isa_levels() : std::vector<std::string>();
    backends.append(row);
  }
  result["backends"] = backends;
  return result;
}

}  // namespace

void bind_backend(nb::module_& module) {
  nb::class_<BackendObject>(
      module, "Backend",
      "A backend with threads of its own. Calls that name a backend by a string share one.\n\n"
      "isa: a level of a CPU backend, as info() lists them; empty: the best.\n"
      "cpus: pins the threads that it starts, thread i to cpus[i % len(cpus)].")
      .def("__init__", &init_backend, nb::arg("name"), nb::kw_only(), nb::arg("num_threads") = 0,
           nb::arg("isa") = "", nb::arg("cpus") = std::vector<int>())
      .def_prop_ro("name", [](const BackendObject& self) { return self.shared->name; })
      .def("info", &backend_info,
           "Name, version, isa, device and whether bits depend on the batch.")
      .def(
          "supports",
          [](const BackendObject& self, const AttentionSpec& spec) {
            return support_dict(self.shared->backend->supports(spec));
          },
          nb::arg("spec"), "{'ok', 'reasons', 'fused_append', 'own_rounding', 'clears_tails'}")
      .def(
          "preferred_layout",
          [](const BackendObject& self, const AttentionSpec& spec) {
            return layout_name(self.shared->backend->preferred_layout(spec).id);
          },
          nb::arg("spec"), "The layout in which it is fastest.")
      .def("workspace", &workspace_dict, nb::arg("spec"), nb::arg("bounds"),
           "{'host_bytes', 'device_bytes'} of a PreparedBatch with these bounds.")
      .def("__repr__", [](const BackendObject& self) {
        const BackendInfo info = self.shared->backend->info();
        return text("<quire.Backend ", info.name, info.isa.empty() ? "" : " ", info.isa, ">");
      });
  module.def("info", &module_info);
  module.def("set_num_threads",
             [](std::int64_t num_threads) { Runtime::instance().set_num_threads(num_threads); });
  module.def("get_num_threads", [] { return Runtime::instance().num_threads(); });
  module.def("release_memory", [] { Runtime::instance().clear(); });
  module.def("_after_fork", &Runtime::after_fork);
}

}  // namespace quire::python
