// SPDX-License-Identifier: Apache-2.0
#include "opaque_backend/opaque_backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "attention/mask.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/host_backend.h"
#include "layout/kv_offset.h"

namespace quire::testing {
namespace {

struct OpaquePrepared final : PreparedBatch {
  using PreparedBatch::PreparedBatch;
  std::unique_ptr<PreparedBatch> inner;  // of the CPU backend, for a plain cache
};

PreparedBatch& inner_of(const PreparedBatch& prepared) {
  return *static_cast<const OpaquePrepared&>(prepared).inner;
}

bool is_scrambled(KvLayoutId layout) {
  return layout == kScrambled;
}

AttentionSpec plain_spec(const AttentionSpec& spec) {
  AttentionSpec plain = spec;
  if (is_scrambled(spec.kv.layout)) plain.kv.layout = KvLayoutId::kPlain;
  return plain;
}

// The blocks of a scrambled cache in a plain one with the same block ids. What has not been
// unsealed is NaN, so that reading it shows.
class PlainImage {
 public:
  explicit PlainImage(const KvCacheView& cache) : view_(cache) {
    AttentionSpec spec;
    spec.num_q_heads = spec.num_kv_heads = cache.num_kv_heads;
    spec.head_dim = cache.head_dim;
    spec.value_dim = cache.value_dim;
    spec.kv = cache.format;
    spec.kv.layout = KvLayoutId::kPlain;
    const KvLayout layout = plain_layout(spec);
    bytes_.assign(static_cast<std::size_t>(cache.num_blocks * layout.block_bytes), std::byte{0xff});
    view_.format = spec.kv;
    view_.k = bytes_.data();
    view_.v = bytes_.data() + layout.v_offset_bytes;
    view_.k_strides = layout.k_strides;
    view_.v_strides = layout.v_strides;
    view_.opaque_k_bytes = view_.opaque_v_bytes = 0;
    if (spec.kv.scales != ScaleGranularity::kPerTokenHead) return;  // the caller's serve both
    const std::int64_t tokens = spec.kv.block_size;
    const std::int64_t per_block = spec.num_kv_heads * tokens;
    const auto num_scales = static_cast<std::size_t>(cache.num_blocks * per_block);
    scales_.assign(2 * num_scales, std::nanf(""));
    view_.k_scales = {scales_.data(), {.block = per_block, .head = tokens, .token = 1}};
    view_.v_scales = view_.k_scales;
    if (!spec.kv.v_in_k) view_.v_scales.data += num_scales;
  }

  const KvCacheView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
  KvCacheView view_;
};

// The distinct blocks of some slots.
std::vector<std::int64_t> blocks_of(std::vector<std::int64_t> slots, std::int64_t block_size) {
  for (std::int64_t& slot : slots) slot /= block_size;
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

std::vector<std::int64_t> blocks_seen(const PreparedBatch& prepared) {
  const AttentionSpec& spec = prepared.spec();
  const BatchView& batch = prepared.batch();
  std::vector<std::int64_t> slots;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const SequenceView sequence = sequence_view(batch, s);
    for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
      if (!is_seen(spec.mask, spec.alignment, sequence, j)) continue;  // may lie nowhere
      slots.push_back(key_slot(batch.kv.blocks, spec.kv.block_size, s, j));
    }
  }
  return blocks_of(std::move(slots), spec.kv.block_size);
}

std::vector<std::int64_t> blocks_stored(const PreparedBatch& prepared) {
  const ArrayView<std::int64_t>& all = prepared.batch().kv.slots;
  std::vector<std::int64_t> slots;
  std::copy_if(all.begin(), all.end(), std::back_inserter(slots),
               [](std::int64_t slot) { return slot >= 0; });
  return blocks_of(std::move(slots), prepared.spec().kv.block_size);
}

class OpaqueBackend final : public HostBackend {
 public:
  explicit OpaqueBackend(const OpaqueBackendOptions& options)
      : options_(options), inner_(make_cpu_backend({.num_threads = 2, .isa = "scalar"})) {}

  BackendInfo info() const override {
    BackendInfo info = inner_->info();
    info.name = "opaque";
    info.isa.clear();
    return info;
  }
  KvLayout preferred_layout(const AttentionSpec& spec) const override {
    return scrambled_layout(spec, options_.pieces);
  }

 protected:
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    support = inner_->supports(plain_spec(spec));
    support.fused_append = options_.fuses_append;
  }
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return inner_->workspace(plain_spec(spec), bounds);
  }
  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    auto prepared = std::make_unique<OpaquePrepared>(spec, bounds, workspace);
    prepared->inner = inner_->make_prepared(plain_spec(spec), bounds, workspace);
    return prepared;
  }
  void do_prepare(PreparedBatch& prepared, Stream /*stream*/) override {
    inner_->prepare(inner_of(prepared), prepared.batch());
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream /*stream*/) override {
    if (!is_scrambled(cache.format.layout)) {
      return inner_->append(inner_of(prepared), new_kv, cache);
    }
    const PlainImage image(cache);
    const std::vector<std::int64_t> blocks = blocks_stored(prepared);
    // A block that nothing was stored in yet is memory as it was found.
    const bool keeps = !has(OpaqueFault::kAppendsToEmptyBlocks);
    for (const std::int64_t block : blocks) {
      if (keeps && is_sealed(cache, block)) unseal(cache, block, image.view(), block);
    }
    inner_->append(inner_of(prepared), new_kv, image.view());
    for (const std::int64_t block : blocks) seal(image.view(), block, cache, block);
    if (has(OpaqueFault::kWritesPastCache)) {
      static_cast<std::byte*>(cache.k)[cache.num_blocks * cache.k_strides.block] = std::byte{0};
    }
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream stream) override {
    const KvCacheView& cache = source.cache;
    if (source.new_kv.k.present()) do_append(prepared, source.new_kv, cache, stream);
    if (!is_scrambled(cache.format.layout)) {
      return inner_->attend(inner_of(prepared), params, q, cache, output);
    }
    const PlainImage image(cache);
    for (const std::int64_t block : blocks_seen(prepared)) {
      unseal(cache, block, image.view(), block);
    }
    inner_->attend(inner_of(prepared), params, q, image.view(), output);
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream /*stream*/) override {
    inner_->merge(partials, sinks, output);
  }

  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override {
    for (std::size_t layer = 0; layer < src.size(); ++layer) {
      const bool from = is_scrambled(src[layer].format.layout);
      const bool to = is_scrambled(dst[layer].format.layout);
      if (from == to) {
        KvCacheView without_v = src[layer];
        if (has(OpaqueFault::kCopiesNoV)) without_v.opaque_v_bytes = 0;
        HostBackend::do_copy_blocks({&without_v, 1}, dst.subspan(layer, 1), copies, stream);
      } else if (from && !has(OpaqueFault::kExportsNothing)) {
        for (const BlockCopy& copy : copies) unseal(src[layer], copy.src, dst[layer], copy.dst);
      } else if (to && !(layer > 0 && has(OpaqueFault::kImportsFirstLayer))) {
        for (const BlockCopy& copy : copies) seal(src[layer], copy.src, dst[layer], copy.dst);
      }
    }
  }

 private:
  bool has(OpaqueFault fault) const { return options_.fault == fault; }

  OpaqueBackendOptions options_;
  std::unique_ptr<AttentionBackend> inner_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_opaque_backend(const OpaqueBackendOptions& options) {
  return std::make_unique<OpaqueBackend>(options);
}

}  // namespace quire::testing
