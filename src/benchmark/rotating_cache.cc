// SPDX-License-Identifier: Apache-2.0
#include "benchmark/rotating_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/host_memory.h"
#include "conformance/random.h"
#include "layout/kv_extent.h"

namespace quire::benchmark {
namespace {

using conformance::CacheStyle;

// Of eight bytes drawn at random, `keep` stay and `set` are added.
struct Pattern {
  std::uint64_t keep;
  std::uint64_t set;
};

// Exponents that make no number special: bf16 and f32 2^-7 .. 2^0, the others 2^-3 .. 2^0.
constexpr Pattern pattern_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return {0x83ffffff83ffffffULL, 0x3c0000003c000000ULL};
    case DType::kBF16:
      return {0x83ff83ff83ff83ffULL, 0x3c003c003c003c00ULL};
    case DType::kF16:
      return {0x8fff8fff8fff8fffULL, 0x3000300030003000ULL};
    case DType::kF8E4M3:
      return {0x9f9f9f9f9f9f9f9fULL, 0x2020202020202020ULL};
    case DType::kF8E5M2:
      return {0x8f8f8f8f8f8f8f8fULL, 0x3030303030303030ULL};
    case DType::kI8:
      break;
  }
  return {~0ULL, 0};
}

void copy_repeatedly(DeviceMemory& memory, void* data, std::int64_t size_bytes,
                     const std::vector<std::uint64_t>& words) {
  const std::int64_t stage_bytes = std::ssize(words) * std::int64_t{sizeof(std::uint64_t)};
  // From pinned memory a device takes several times as much in a second.
  void* stage = memory.allocate_host(stage_bytes);
  std::memcpy(stage, words.data(), static_cast<std::size_t>(stage_bytes));
  for (std::int64_t at = 0; at < size_bytes; at += stage_bytes) {
    memory.copy_to_device(static_cast<std::byte*>(data) + at, stage,
                          std::min(stage_bytes, size_bytes - at), Stream{});
  }
  memory.synchronize(Stream{});
  memory.free_host(stage);
}

void fill_scales(DeviceMemory& memory, float* data, std::int64_t count) {
  const std::vector<float> scales(static_cast<std::size_t>(count), 0.0078125F);
  memory.copy_to_device(data, scales.data(), count * std::int64_t{sizeof(float)}, Stream{});
  memory.synchronize(Stream{});
}

std::int64_t num_scales(const AttentionSpec& spec, std::int64_t num_blocks) noexcept {
  switch (spec.kv.scales) {
    case ScaleGranularity::kNone:
      return 0;
    case ScaleGranularity::kPerTensor:
      return 1;
    case ScaleGranularity::kPerHead:
      return spec.num_kv_heads;
    case ScaleGranularity::kPerTokenHead:
      return num_blocks * spec.num_kv_heads * spec.kv.block_size;
  }
  return 0;
}

// Of scales that lie [block, token, head], as the tensors of the caller do.
KvStrides caller_scale_strides(const AttentionSpec& spec) noexcept {
  if (spec.kv.scales == ScaleGranularity::kPerHead) return {.head = 1};
  if (spec.kv.scales != ScaleGranularity::kPerTokenHead) return {};
  return {.block = std::int64_t{spec.num_kv_heads} * spec.kv.block_size,
          .head = 1,
          .token = spec.num_kv_heads};
}

}  // namespace

Allocation::Allocation(DeviceMemory& memory, std::int64_t size_bytes)
    : memory_(memory),
      data_(static_cast<std::byte*>(memory.allocate(size_bytes, PageHint::kHuge))),
      size_bytes_(size_bytes) {}

Allocation::Allocation(Allocation&& other) noexcept
    : memory_(other.memory_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(other.size_bytes_) {}

Allocation::~Allocation() {
  if (data_ != nullptr) memory_.free(data_);
}

void fill_random(DeviceMemory& memory, void* data, std::int64_t size_bytes, DType dtype) {
  constexpr std::int64_t kStageWords = 1 << 19;  // 4 MB: larger than what a tile could repeat in
  const Pattern pattern = pattern_of(dtype);
  conformance::Random random(conformance::seed_of(dtype_name(dtype)));
  std::vector<std::uint64_t> words(
      static_cast<std::size_t>(std::min(kStageWords, size_bytes / 8 + 1)));
  for (std::uint64_t& word : words) word = (random.next() & pattern.keep) | pattern.set;
  copy_repeatedly(memory, data, size_bytes, words);
}

KvLayout layout_for(const AttentionBackend& backend, const AttentionSpec& spec, CacheStyle style) {
  return style == CacheStyle::kPreferred ? backend.preferred_layout(spec) : plain_layout(spec);
}

std::int64_t RotatingCache::layer_bytes(const AttentionSpec& spec, const KvLayout& layout,
                                        const Options& options) noexcept {
  const std::int64_t scales = num_scales(spec, options.num_blocks) * (spec.kv.v_in_k ? 1 : 2);
  return options.num_blocks * layout.block_bytes + scales * std::int64_t{sizeof(float)};
}

RotatingCache::RotatingCache(AttentionBackend& backend, const AttentionSpec& spec,
                             const KvLayout& layout, const Options& options)
    : memory_(&backend.memory()), layout_(layout), options_(options) {
  if (options.style == CacheStyle::kSeparate) {
    bind_caller(spec);
  } else {
    bind_owned(spec);
    if (is_opaque(layout.id)) fill_opaque(backend, spec);
  }
}

void RotatingCache::bind_caller(const AttentionSpec& spec) {
  const std::int64_t blocks = options_.num_blocks;
  const std::int64_t tokens = spec.kv.block_size;
  const std::int64_t heads = spec.num_kv_heads;
  const auto make = [&](std::int64_t dim) {
    tensors_.emplace_back(*memory_, blocks * tokens * heads * dim * dtype_bytes(spec.kv.dtype));
    fill_random(*memory_, tensors_.back().data(), tensors_.back().size_bytes(), spec.kv.dtype);
    return MutableTensorView(tensors_.back().data(), spec.kv.dtype, {blocks, tokens, heads, dim},
                             memory_->device());
  };
  const auto make_scales = [&]() -> KvScales {
    const std::int64_t count = num_scales(spec, blocks);
    if (count == 0) return {};
    tensors_.emplace_back(*memory_, count * std::int64_t{sizeof(float)});
    auto* data = reinterpret_cast<float*>(tensors_.back().data());
    fill_scales(*memory_, data, count);
    return {data, caller_scale_strides(spec)};
  };
  for (int i = 0; i < options_.num_layers; ++i) {
    const MutableTensorView k = make(spec.head_dim);
    const MutableTensorView v = spec.kv.v_in_k ? k : make(spec.value_dim);
    KvCacheView view = view_kv(spec, KvOrder::kBlockTokenHeadDim, k, v);
    view.k_scales = make_scales();
    view.v_scales = spec.kv.v_in_k ? view.k_scales : make_scales();
    layers_.push_back(view);
  }
}

void RotatingCache::bind_owned(const AttentionSpec& spec) {
  cache_ = std::make_unique<KvCache>(*memory_, spec, layout_,
                                     KvCache::Options{.num_layers = options_.num_layers,
                                                      .num_blocks = options_.num_blocks,
                                                      .pages = PageHint::kHuge});
  layers_.assign(cache_->layers().begin(), cache_->layers().end());
  if (is_opaque(layout_.id)) return;
  const std::int64_t count = num_scales(spec, options_.num_blocks);
  for (const KvCacheView& layer : layers_) {
    fill_random(*memory_, layer.k, options_.num_blocks * layout_.block_bytes, spec.kv.dtype);
    if (count == 0) continue;
    fill_scales(*memory_, layer.k_scales.data, count);
    if (!spec.kv.v_in_k) fill_scales(*memory_, layer.v_scales.data, count);
  }
}

// Only its backend knows what the bytes of an opaque block mean: it imports them from a plain one.
void RotatingCache::fill_opaque(AttentionBackend& backend, const AttentionSpec& spec) {
  AttentionSpec plain_spec = spec;
  plain_spec.kv.layout = KvLayoutId::kPlain;
  RotatingCache plain(backend, plain_spec, plain_layout(plain_spec),
                      {.style = CacheStyle::kPlainRecord, .num_blocks = options_.num_blocks});
  std::vector<BlockCopy> copies;
  for (std::int32_t block = 0; block < options_.num_blocks; ++block)
    copies.push_back({block, block});
  const KvCacheView source = plain.next();
  for (const KvCacheView& layer : layers_) {
    backend.import_blocks({&source, 1}, {&layer, 1}, copies);
  }
  memory_->synchronize(Stream{});
}

bool RotatingCache::serves(AttentionBackend& backend, const KvLayout& layout) const noexcept {
  // Backends of one device read each other's memory.
  const Device device = backend.memory().device();
  const bool same_memory =
      &backend.memory() == memory_ || (!device.is_host() && device == memory_->device());
  return same_memory && layout.id == layout_.id && layout.block_bytes == layout_.block_bytes &&
         layout.alignment == layout_.alignment && layout.v_offset_bytes == layout_.v_offset_bytes &&
         layout.k_strides == layout_.k_strides && layout.v_strides == layout_.v_strides &&
         !is_opaque(layout.id);
}

const KvCacheView& RotatingCache::next() noexcept {
  const KvCacheView& layer = layers_[next_];
  next_ = (next_ + 1) % layers_.size();
  return layer;
}

}  // namespace quire::benchmark
