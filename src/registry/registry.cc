// SPDX-License-Identifier: Apache-2.0
#include "quire/registry.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "backends/cpu/cpu_backend.h"
#include "backends/reference/reference.h"
#include "base/check.h"
#include "quire/version.h"
#include "registry/plugin.h"

namespace quire {
namespace {

Availability probe_built_in() {
  return {.available = true, .version = version(), .reasons = {}};
}

std::vector<std::string> no_levels() {
  return {};
}

// Best first. A backend of a vendor or a device stands before `cpu` only if it is what the user
// would want without asking; `reference` is for proofs and never chosen unless named.
constexpr std::array kTable{
    BackendEntry{.name = "cpu",
                 .summary = "every feature on any CPU",
                 .automatic = true,
                 .plugin = false,
                 .probe = probe_built_in,
                 .isa_levels = cpu_isa_levels,
                 .make = make_cpu_backend},
    BackendEntry{.name = "reference",
                 .summary = "the contract in fp64, the oracle of all others",
                 .automatic = false,
                 .plugin = false,
                 .probe = probe_built_in,
                 .isa_levels = no_levels,
                 .make = make_reference_backend},
    plugin_row<"cuda">("NVIDIA GPUs from compute capability 8.0 on; built where nvcc is", false),
    plugin_row<"openvino">("PagedAttention of OpenVINO, on the CPU", false),
    plugin_row<"onednn">("matmul and softmax of oneDNN over gathered keys", false),
    plugin_row<"torch">("scaled dot product attention of PyTorch over gathered keys", false),
};

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

std::string known_names() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : kTable) names.emplace_back(entry.name);
  return join(names, ", ");
}

// What the environment asks for, or empty.
std::string_view forced_name() {
  const char* name = std::getenv("QUIRE_BACKEND");
  return name != nullptr ? name : "";
}

}  // namespace

std::span<const BackendEntry> backend_table() noexcept {
  return kTable;
}

std::unique_ptr<AttentionBackend> make_backend(std::string_view name,
                                               const BackendOptions& options) {
  require(options.num_threads >= 0 && options.num_threads <= kMaxBackendThreads,
          "num_threads: not in [0, ", kMaxBackendThreads, "]: ", options.num_threads);
  for (const BackendEntry& entry : kTable) {
    if (name != entry.name) continue;
    const Availability availability = entry.probe();
    if (!availability.available) {
      fail(ErrorCode::kUnsupported, "backend ", name,
           " cannot be used here: ", join(availability.reasons, "; "));
    }
    const std::vector<std::string> levels = entry.isa_levels();
    if (!options.isa.empty() &&
        std::find(levels.begin(), levels.end(), options.isa) == levels.end()) {
      fail(ErrorCode::kInvalidArgument, "backend ", name, " has no level named '", options.isa,
           "' on this machine; it has: ", levels.empty() ? "none" : join(levels, ", "),
           availability.reasons.empty() ? "" : "; ", join(availability.reasons, "; "));
    }
    return entry.make(options);
  }
  fail(ErrorCode::kInvalidArgument, "no backend is named '", name, "'; known: ", known_names());
}

std::unique_ptr<AttentionBackend> choose_backend(const AttentionSpec& spec,
                                                 const BackendOptions& options) {
  validate(spec);
  if (const std::string_view forced = forced_name(); !forced.empty()) {
    std::unique_ptr<AttentionBackend> backend = make_backend(forced, options);
    if (const Support support = backend->supports(spec); !support.ok()) {
      fail(ErrorCode::kUnsupported, "backend ", forced, " (from QUIRE_BACKEND) refuses ",
           to_string(spec), ": ", join(support.reasons, "; "));
    }
    return backend;
  }
  std::string refusals;
  for (const BackendEntry& entry : kTable) {
    if (!entry.automatic) continue;
    const Availability availability = entry.probe();
    std::vector<std::string> reasons = availability.reasons;
    if (availability.available) {
      std::unique_ptr<AttentionBackend> backend = entry.make(options);
      const Support support = backend->supports(spec);
      if (support.ok()) return backend;
      reasons = support.reasons;
    }
    refusals += concat(refusals.empty() ? "" : "; ", entry.name, ": ", join(reasons, ", "));
  }
  fail(ErrorCode::kUnsupported, "no backend takes ", to_string(spec), ": ", refusals);
}

}  // namespace quire
