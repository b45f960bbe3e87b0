// SPDX-License-Identifier: Apache-2.0
#include "fake_device/fake_device.h"

#include <mutex>
#include <utility>
#include <vector>

#include "attention/batch_arrays.h"
#include "backends/cpu/cpu_backend.h"
#include "base/check.h"
#include "fake_device/fake_memory.h"
#include "quire/registry.h"

namespace quire::testing {
namespace {

// What work on a batch came to, kept until somebody polls. The first error wins.
class ErrorSlot {
 public:
  void set(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = {.code = error.code(), .message = error.what()};
  }
  Status take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(status_, Status{});
  }
  bool ok() {
    const std::lock_guard lock(mutex_);
    return status_.ok();
  }

 private:
  std::mutex mutex_;
  Status status_;
};

// Host copies of the metadata of one batch: what a real device would keep in its workspace.
struct FakePrepared final : PreparedBatch {
  using PreparedBatch::PreparedBatch;
  std::unique_ptr<PreparedBatch> inner;  // of the CPU backend; touched only by the stream's thread
  CopiedArrays uploaded;                 // likewise
  mutable ErrorSlot error;
  mutable bool usable = false;  // likewise: the last prepare went well
};

FakePrepared& self(PreparedBatch& prepared) {
  return static_cast<FakePrepared&>(prepared);
}
const FakePrepared& self(const PreparedBatch& prepared) {
  return static_cast<const FakePrepared&>(prepared);
}

class FakeDevice final : public AttentionBackend {
 public:
  FakeDevice() : inner_(make_cpu_backend({.num_threads = 2, .isa = "scalar"})) {}

  BackendInfo info() const override {
    BackendInfo info = inner_->info();
    info.name = "fake_device";
    info.isa.clear();
    info.device = memory_.device();
    return info;
  }
  DeviceMemory& memory() override { return memory_; }
  KvLayout preferred_layout(const AttentionSpec& spec) const override {
    return pair_tiled_layout_fits(spec) ? pair_tiled_layout(spec) : plain_layout(spec);
  }

 protected:
  Status do_poll(PreparedBatch& prepared) override {
    Status status = self(prepared).error.take();
    return status.ok() ? error_.take() : status;
  }
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    support = inner_->supports(spec);
  }
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return {.host_bytes = 0, .device_bytes = inner_->workspace(spec, bounds).host_bytes};
  }
  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    auto prepared = std::make_unique<FakePrepared>(spec, bounds, workspace);
    const Workspace inner{.host = memory_.to_host(workspace.device),
                          .device = nullptr,
                          .size = {.host_bytes = workspace.size.device_bytes, .device_bytes = 0}};
    prepared->inner = inner_->make_prepared(spec, bounds, inner);
    return prepared;
  }

  void do_prepare(PreparedBatch& prepared, Stream stream) override {
    FakePrepared& fake = self(prepared);
    const BatchView batch = prepared.batch();
    memory_.stream(stream).enqueue([this, &fake, batch] {
      fake.usable = false;
      guard(fake.error, [&] {
        inner_->prepare(*fake.inner, upload(batch, fake.uploaded));
        fake.usable = true;
      });
    });
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override {
    const FakePrepared& fake = self(prepared);
    memory_.stream(stream).enqueue([this, &fake, new_kv, cache] {
      if (!fake.usable) return;
      guard(fake.error, [&] { inner_->append(*fake.inner, on_host(new_kv), on_host(cache)); });
    });
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream stream) override {
    const FakePrepared& fake = self(prepared);
    memory_.stream(stream).enqueue([this, &fake, params, q, source, output] {
      if (!fake.usable) return;
      guard(fake.error, [&] {
        AttentionParams host = params;
        host.alibi_slopes = on_host(params.alibi_slopes);
        host.sinks = on_host(params.sinks);
        host.bias = on_host(params.bias);
        inner_->attend(*fake.inner, host, on_host(q), on_host(source.cache),
                       {.out = on_host(output.out), .lse = on_host(output.lse)});
      });
    });
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override {
    std::vector<Partial> copies(partials.begin(), partials.end());
    memory_.stream(stream).enqueue([this, copies, sinks, output] {
      guard(error_, [&] {
        std::vector<Partial> host;
        for (const Partial& part : copies) host.push_back({on_host(part.out), on_host(part.lse)});
        inner_->merge(host, on_host(sinks),
                      {.out = on_host(output.out), .lse = on_host(output.lse)});
      });
    });
  }

  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override {
    std::vector<BlockCopy> list(copies.begin(), copies.end());
    memory_.stream(stream).enqueue([this, from = on_host(src), to = on_host(dst), list] {
      guard(error_, [&] {
        // Layouts may differ here: export to the plain one, or import from it.
        if (from.empty() || from[0].format.layout == to[0].format.layout) {
          inner_->copy_blocks(from, to, list);
        } else if (to[0].format.layout == KvLayoutId::kPlain) {
          inner_->export_blocks(from, to, list);
        } else {
          inner_->import_blocks(from, to, list);
        }
      });
    });
  }

  void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& copy, Stream stream) override {
    memory_.stream(stream).enqueue([this, from = on_host(src), to = on_host(dst), copy] {
      guard(error_, [&] { inner_->copy_region(from, to, copy); });
    });
  }

 private:
  template <class F>
  static void guard(ErrorSlot& slot, F&& f) {
    try {
      f();
    } catch (const Error& error) {
      slot.set(error);
    }
  }

  void* translate(const void* data, Device device) const {
    return device.is_host() ? const_cast<void*>(data) : memory_.to_host(data);
  }
  template <class T>
  ArrayView<T> on_host(const ArrayView<T>& array) const {
    return {static_cast<const T*>(translate(array.data, array.device)), array.size};
  }
  template <class Pointer>
  BasicTensorView<Pointer> on_host(BasicTensorView<Pointer> tensor) const {
    tensor.data = translate(tensor.data, tensor.device);
    tensor.device = {};
    return tensor;
  }
  KvCacheView on_host(KvCacheView cache) const {
    cache.k = translate(cache.k, cache.device);
    cache.v = translate(cache.v, cache.device);
    cache.k_scales.data = static_cast<float*>(translate(cache.k_scales.data, cache.device));
    cache.v_scales.data = static_cast<float*>(translate(cache.v_scales.data, cache.device));
    cache.device = {};
    return cache;
  }
  std::vector<KvCacheView> on_host(std::span<const KvCacheView> layers) const {
    std::vector<KvCacheView> result;
    for (const KvCacheView& layer : layers) result.push_back(on_host(layer));
    return result;
  }
  NewKv on_host(const NewKv& new_kv) const { return {on_host(new_kv.k), on_host(new_kv.v)}; }

  BatchView upload(const BatchView& batch, CopiedArrays& to) const {
    return copy_arrays(batch, to, [this](const auto& array, auto& storage) {
      const auto host = on_host(array);
      storage.assign(host.begin(), host.end());
    });
  }

  std::unique_ptr<AttentionBackend> inner_;
  ErrorSlot error_;    // of work that belongs to no batch
  FakeMemory memory_;  // last: its streams end before what their tasks use
};

}  // namespace

std::unique_ptr<AttentionBackend> make_fake_device() {
  return std::make_unique<FakeDevice>();
}

}  // namespace quire::testing
