// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device_backend.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/torch/device_attend.h"
#include "backends/torch/device_batch.h"
#include "backends/torch/device_store.h"
#include "backends/torch/guarded.h"
#include "backends/torch/sdpa.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "registry/dense_stages.h"

namespace quire::torch_sdpa {
namespace {

const DevicePrepared& self(const PreparedBatch& prepared) {
  return static_cast<const DevicePrepared&>(prepared);
}

// What errors name: the spec of a batch, or what is known of a call without one.
auto spec_of(const PreparedBatch& prepared) {
  return [&prepared] { return to_string(prepared.spec()); };
}

std::string cache_text(const KvCacheView& cache) {
  return concat("a cache of ", cache.num_blocks, " blocks of ", cache.format.block_size, ", ",
                cache.num_kv_heads, " kv heads, dims ", cache.head_dim, "/", cache.value_dim, ", ",
                dtype_name(cache.format.dtype));
}

std::string merge_text(std::span<const Partial> partials, const AttentionOutput& output) {
  const MutableTensorView& out = output.out;
  return concat(partials.size(), " partials of ", out.shape[0], " rows, ", out.shape[1],
                " heads, dim ", out.shape[2], ", ", dtype_name(out.dtype));
}

// K and V by call, in memory that torch's allocator does not know.
class HeldKv final : public GatheredKv {
 public:
  std::vector<DenseKv> kv;
  std::vector<DeviceBytes> memory;
};

class TorchDeviceBackend final : public AttentionBackend, public DenseStages {
 public:
  // `own` may be null: then the memory is the host's.
  explicit TorchDeviceBackend(std::unique_ptr<PolledMemory> own)
      : own_(std::move(own)),
        memory_(own_ != nullptr ? *own_ : host_memory()),
        device_(torch_device(memory_.device())) {
    // Torch sets itself up on a device when it first allocates there: not within a recording.
    guarded(
        "first allocation", [&] { return concat("device ", device_.str()); },
        [&] { at::empty({1}, at::TensorOptions().device(device_)); });
  }

  BackendInfo info() const override {
    return {.name = "torch",
            .version = version(),
            .isa = device_.is_cpu() ? "cpu" : "cuda",
            .device = memory_.device(),
            .batch_invariant = false};
  }
  DeviceMemory& memory() override { return memory_; }

  std::unique_ptr<GatheredKv> make_gathered(const PreparedBatch& prepared) override {
    const AttentionSpec& spec = prepared.spec();
    auto held = std::make_unique<HeldKv>();
    for (const DeviceCall& call : self(prepared).calls.calls) {
      const auto make = [&](const std::vector<std::int64_t>& shape, at::ScalarType type) {
        std::int64_t size_bytes = static_cast<std::int64_t>(c10::elementSize(type));
        for (const std::int64_t size : shape) size_bytes *= size;
        held->memory.emplace_back(memory_, std::max<std::int64_t>(size_bytes, 1));
        memory_.fill(held->memory.back().data(), 0, size_bytes, Stream{});
        return view_memory(held->memory.back().data(), shape, type, device_);
      };
      const at::ScalarType type = scalar_type_of(device_compute_type(spec));
      DenseKv kv;
      kv.k = make(dense_shape(spec, call), type);
      kv.v = spec.kv.v_in_k ? kv.k : make(dense_shape(spec, call), type);
      const std::vector<std::int64_t> counts = count_shape(spec, call);
      if (!counts.empty()) kv.not_finite = make(counts, at::kLong);
      held->kv.push_back(kv);
    }
    memory_.synchronize(Stream{});
    return held;
  }

  void gather(const PreparedBatch& prepared, const KvCacheView& cache, GatheredKv& gathered,
              Stream stream) override {
    const DevicePrepared& mine = self(prepared);
    auto& held = static_cast<HeldKv&>(gathered);
    guarded("gather", spec_of(prepared), [&] {
      const DeviceScope scope(device_, stream);
      for (std::size_t i = 0; i < mine.calls.calls.size(); ++i) {
        torch_sdpa::gather(mine.spec(), mine.calls.calls[i], mine.lists, cache, held.kv[i]);
      }
    });
  }

  void attend_gathered(const PreparedBatch& prepared, const AttentionParams& params,
                       const TensorView& q, const GatheredKv& gathered,
                       const AttentionOutput& output, Stream stream) override {
    const auto& held = static_cast<const HeldKv&>(gathered);
    each_call(prepared, params, q, output, stream,
              [&](const DeviceCall&, std::size_t i) { return held.kv[i]; });
  }

 protected:
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    if (spec.kv.layout != KvLayoutId::kPlain) {
      support.reasons.push_back(concat("layout ", static_cast<int>(spec.kv.layout),
                                       ": torch gathers by strides, which the plain layout has"));
    }
    if (spec.features.softcap) {
      support.reasons.emplace_back(
          "softcap: scaled_dot_product_attention lets nothing happen between its two products");
    }
  }

  WorkspaceSize do_workspace(const AttentionSpec&, const BatchBounds& bounds) const override {
    const std::int64_t size_bytes = DevicePrepared::list_bytes(bounds);
    return {.host_bytes = size_bytes, .device_bytes = size_bytes};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    return std::make_unique<DevicePrepared>(memory_, spec, bounds, workspace);
  }

  void do_prepare(PreparedBatch& prepared, Stream stream) override {
    self(prepared).last_stream = stream;
    guarded("prepare", spec_of(prepared),
            [&] { static_cast<DevicePrepared&>(prepared).plan(device_, stream); });
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override {
    self(prepared).require_fits(cache);
    self(prepared).last_stream = stream;
    guarded("append", spec_of(prepared), [&] {
      const DeviceScope scope(device_, stream);
      store_new(self(prepared).lists, new_kv, cache);
    });
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream stream) override {
    const AttentionSpec& spec = prepared.spec();
    self(prepared).require_fits(source.cache);
    const bool is_padded =
        device_dims(spec) != spec.head_dim || device_dims(spec) != spec.value_dim;
    const auto options =
        at::TensorOptions().dtype(scalar_type_of(device_compute_type(spec))).device(device_);
    each_call(prepared, params, q, output, stream, [&](const DeviceCall& call, std::size_t) {
      const auto make = [&] {
        const std::vector<std::int64_t> shape = dense_shape(spec, call);
        return is_padded ? at::zeros(shape, options) : at::empty(shape, options);
      };
      DenseKv kv;
      kv.k = make();
      kv.v = spec.kv.v_in_k ? kv.k : make();
      const std::vector<std::int64_t> counts = count_shape(spec, call);
      if (!counts.empty()) kv.not_finite = at::zeros(counts, options.dtype(at::kLong));
      torch_sdpa::gather(spec, call, self(prepared).lists, source.cache, kv);
      return kv;
    });
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override {
    guarded(
        "merge", [&] { return merge_text(partials, output); },
        [&] {
          const DeviceScope scope(device_, stream);
          merge_on_device(partials, sinks, output, device_);
        });
  }

  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override {
    if (!src.empty()) copy_layers(src, dst, copies, 0, src[0].format.block_size, stream);
  }
  void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& region, Stream stream) override {
    copy_layers(src, dst, {&region.blocks, 1}, region.first_token, region.num_tokens, stream);
  }

  Status do_poll(PreparedBatch& prepared) override {
    return own_ != nullptr ? own_->poll(self(prepared).last_stream) : Status{};
  }

 private:
  // kv(call, index) gives K and V of a call.
  template <class F>
  void each_call(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const AttentionOutput& output, Stream stream, F&& kv) {
    const DevicePrepared& mine = self(prepared);
    const DeviceProblem problem{.spec = mine.spec(),
                                .params = params,
                                .plan = mine.lists,
                                .q = q,
                                .output = output,
                                .device = device_};
    mine.last_stream = stream;
    guarded("attend", spec_of(prepared), [&] {
      const DeviceScope scope(device_, stream);
      for (std::size_t i = 0; i < mine.calls.calls.size(); ++i) {
        const DeviceCall& call = mine.calls.calls[i];
        attend_call(problem, call, kv(call, i));
      }
    });
  }

  void copy_layers(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                   std::span<const BlockCopy> copies, std::int64_t first_token,
                   std::int64_t num_tokens, Stream stream) {
    for (std::size_t i = 0; i < src.size(); ++i) {
      const KvLayoutId layout = std::max(src[i].format.layout, dst[i].format.layout);
      if (layout == KvLayoutId::kPlain) continue;
      fail(ErrorCode::kUnsupported, "layer ", i, ": layout ", static_cast<int>(layout),
           ": torch copies by strides, which the plain layout has");
    }
    guarded(
        "copy of blocks", [&] { return cache_text(src[0]); },
        [&] {
          const SerialRegion serial;  // for operations on the host's side
          // What is read on the host may still be written by work on the stream.
          if (std::any_of(src.begin(), src.end(), is_on_host)) memory_.synchronize(stream);
          const DeviceScope scope(device_, stream);
          for (std::size_t i = 0; i < src.size(); ++i) {
            copy_tokens(src[i], dst[i], copies, first_token, num_tokens);
          }
        });
  }
  static bool is_on_host(const KvCacheView& cache) noexcept { return cache.device.is_host(); }

  std::unique_ptr<PolledMemory> own_;
  DeviceMemory& memory_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cuda_backend() {
  return std::make_unique<TorchDeviceBackend>(make_cuda_memory());
}

std::unique_ptr<AttentionBackend> make_device_backend_on_host(
    std::unique_ptr<PolledMemory> memory) {
  return std::make_unique<TorchDeviceBackend>(std::move(memory));
}

}  // namespace quire::torch_sdpa
