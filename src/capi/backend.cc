// SPDX-License-Identifier: Apache-2.0
// Backends of the C interface: made, asked, and given memory for a batch.
#include <memory>
#include <string>

#include "capi/convert.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"
#include "quire/registry.h"

namespace quire::capi {
namespace {

class CallerExecutor : public Executor {
 public:
  explicit CallerExecutor(const quire_executor& executor) : executor_(executor) {}
  int num_threads() const noexcept override { return executor_.num_threads; }
  void run(int num_tasks, void (*task)(void* context, int index) noexcept,
           void* context) noexcept override {
    executor_.run(executor_.context, num_tasks, task, context);
  }

 private:
  quire_executor executor_;
};

// A backend and what it needs to live; the backend ends first.
struct OwnedBackend {
  std::unique_ptr<Executor> executor;
  std::unique_ptr<AttentionBackend> backend;
};

BackendOptions to_backend_options(const quire_backend_options* pointer, OwnedBackend& owned) {
  const quire_backend_options given = read_optional_struct(pointer, "options");
  require(given.reserved == 0, "options: reserved is not 0");
  require_array(given.cpus, given.num_cpus, "cpus");
  BackendOptions options;
  options.num_threads = given.num_threads;
  if (given.isa != nullptr) options.isa = given.isa;
  if (given.num_cpus > 0) options.cpus.assign(given.cpus, given.cpus + given.num_cpus);
  if (given.executor != nullptr) {
    const quire_executor executor = read_struct(given.executor, "executor");
    require(executor.reserved == 0, "executor: reserved is not 0");
    require(executor.run != nullptr, "executor: run is NULL");
    require(executor.num_threads >= 1, "executor: num_threads must be at least 1, is ",
            executor.num_threads);
    owned.executor = std::make_unique<CallerExecutor>(executor);
    options.executor = owned.executor.get();
  }
  return options;
}

quire_backend* make_backend_handle(std::shared_ptr<OwnedBackend> owned) {
  auto handle = std::make_unique<quire_backend>();
  handle->info = owned->backend->info();
  AttentionBackend* backend = owned->backend.get();
  handle->backend = std::shared_ptr<AttentionBackend>(std::move(owned), backend);
  return handle.release();
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_backend_create(const char* name, const quire_backend_options* options,
                                  quire_backend** backend) {
  return guarded([&] {
    quire_backend*& out = require_out(backend, "backend");
    quire::require(name != nullptr, "name: is NULL");
    auto owned = std::make_shared<OwnedBackend>();
    const quire::BackendOptions made = to_backend_options(options, *owned);
    owned->backend = quire::make_backend(name, made);
    out = make_backend_handle(std::move(owned));
  });
}

quire_status quire_backend_choose(const quire_attention_spec* spec,
                                  const quire_backend_options* options, quire_backend** backend) {
  return guarded([&] {
    quire_backend*& out = require_out(backend, "backend");
    auto owned = std::make_shared<OwnedBackend>();
    const quire::BackendOptions made = to_backend_options(options, *owned);
    owned->backend = quire::choose_backend(to_spec(spec), made);
    out = make_backend_handle(std::move(owned));
  });
}

quire_status quire_backend_destroy(quire_backend* backend) {
  return destroy(backend, "backend");
}

quire_status quire_supports(const quire_backend* backend, const quire_attention_spec* spec,
                            quire_support* support, char** reasons) {
  return guarded([&] {
    OutStruct<quire_support> out(support, "support");
    const quire::Support found = open(backend, "backend").backend->supports(to_spec(spec));
    auto value = make_struct<quire_support>();
    value.supported = found.ok() ? 1 : 0;
    value.fused_append = found.fused_append ? 1 : 0;
    value.own_rounding = found.own_rounding ? 1 : 0;
    value.clears_tails = found.clears_tails ? 1 : 0;
    if (reasons != nullptr) {
      std::string lines;
      for (const std::string& reason : found.reasons) {
        lines += (lines.empty() ? "" : "\n") + reason;
      }
      *reasons = copy_text(lines);
    }
    out.set(value);
  });
}

quire_status quire_preferred_layout(const quire_backend* backend, const quire_attention_spec* spec,
                                    int32_t* layout) {
  return guarded([&] {
    int32_t& out = require_out(layout, "layout");
    out =
        static_cast<int32_t>(open(backend, "backend").backend->preferred_layout(to_spec(spec)).id);
  });
}

quire_status quire_workspace_size(const quire_backend* backend, const quire_attention_spec* spec,
                                  const quire_batch_bounds* bounds, quire_workspace* size) {
  return guarded([&] {
    OutStruct<quire_workspace> out(size, "size");
    const quire::WorkspaceSize needed =
        open(backend, "backend").backend->workspace(to_spec(spec), to_bounds(bounds));
    auto value = make_struct<quire_workspace>();
    value.host_bytes = needed.host_bytes;
    value.device_bytes = needed.device_bytes;
    out.set(value);
  });
}

quire_status quire_prepared_batch_create(quire_backend* backend, const quire_attention_spec* spec,
                                         const quire_batch_bounds* bounds,
                                         const quire_workspace* workspace,
                                         quire_prepared_batch** prepared) {
  return guarded([&] {
    quire_prepared_batch*& out = require_out(prepared, "prepared");
    auto handle = std::make_unique<quire_prepared_batch>();
    handle->backend = open(backend, "backend").backend;
    quire::AttentionBackend& maker = *handle->backend;
    const quire::AttentionSpec made_for = to_spec(spec);
    const quire::BatchBounds limits = to_bounds(bounds);
    quire::Workspace memory;
    if (workspace != nullptr) {
      const quire_workspace given = read_struct(workspace, "workspace");
      memory = {.host = given.host,
                .device = given.device,
                .size = {.host_bytes = given.host_bytes, .device_bytes = given.device_bytes}};
    } else {
      handle->workspace = std::make_unique<quire::WorkspaceBuffer>(
          maker.memory(), maker.workspace(made_for, limits));
      memory = handle->workspace->view();
    }
    handle->prepared = maker.make_prepared(made_for, limits, memory);
    out = handle.release();
  });
}

quire_status quire_prepared_batch_destroy(quire_prepared_batch* prepared) {
  return destroy(prepared, "prepared");
}
