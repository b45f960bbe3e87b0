// SPDX-License-Identifier: Apache-2.0
// One allocation holds all layers one after another; a layer is its records, then its scales:
//
//   layer: [num_blocks] records of block_bytes | K scales | V scales     each part aligned
//   or     [num_blocks] K | [num_blocks] V     | K scales | V scales     of layouts with v_apart
//
// Scales per (token, head) are [num_blocks, num_kv_heads, block_size], per head [num_kv_heads], per
// tensor one number. With v_in_k there are those of K alone. An opaque record holds its scales per
// (token, head) itself.
#include "quire/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checked_int.h"
#include "layout/kv_extent.h"
#include "quire/device.h"

namespace quire {
namespace {

constexpr std::int64_t kAllocationAlignment = 64;  // what DeviceMemory promises
constexpr const char* kCacheBytes = "size of the cache";

struct ScaleShape {
  std::int64_t count = 0;  // of K, and again of V
  KvStrides strides;
};

ScaleShape scale_shape(const AttentionSpec& spec, const KvLayout& layout, std::int64_t num_blocks) {
  const std::int64_t heads = spec.num_kv_heads;
  switch (spec.kv.scales) {
    case ScaleGranularity::kNone:
      return {};
    case ScaleGranularity::kPerTensor:
      return {1, {}};
    case ScaleGranularity::kPerHead:
      return {heads, {.head = 1}};
    case ScaleGranularity::kPerTokenHead:
      break;
  }
  if (is_opaque(layout.id)) return {};
  const std::int64_t tokens = spec.kv.block_size;
  const std::int64_t per_block = checked_mul(kCacheBytes, heads, tokens);
  return {checked_mul(kCacheBytes, num_blocks, per_block),
          {.block = per_block, .head = tokens, .token = 1}};
}

// Where the parts of a layer begin, in bytes from the layer's first.
struct LayerMap {
  std::int64_t k_scales_bytes = 0;
  std::int64_t v_scales_bytes = 0;
  std::int64_t layer_bytes = 0;
};

LayerMap make_layer_map(const AttentionSpec& spec, const KvLayout& layout, const ScaleShape& scales,
                        std::int64_t num_blocks) {
  const std::int64_t scale_bytes = checked_round_up(
      kCacheBytes, checked_mul(kCacheBytes, scales.count, sizeof(float)), kAllocationAlignment);
  LayerMap map;
  map.k_scales_bytes = record_extent(layout, num_blocks).size_bytes;
  map.v_scales_bytes = spec.kv.v_in_k ? map.k_scales_bytes
                                      : checked_add(kCacheBytes, map.k_scales_bytes, scale_bytes);
  map.layer_bytes = checked_round_up(
      kCacheBytes, checked_add(kCacheBytes, map.v_scales_bytes, scale_bytes), layout.alignment);
  return map;
}

void require_options(const KvCache::Options& options) {
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();
  require(options.num_layers >= 1, "num_layers must be at least 1, is ", options.num_layers);
  require(options.num_blocks >= 1 && options.num_blocks <= kMaxBlocks,
          "num_blocks must be between 1 and ", kMaxBlocks, ", is ", options.num_blocks);
}

void require_record(const AttentionSpec& spec, const KvLayout& layout) {
  const std::int64_t alignment = layout.alignment;
  require(alignment >= kAllocationAlignment && (alignment & (alignment - 1)) == 0,
          "layout alignment must be a power of two from 64 on, is ", alignment);
  require(layout.block_bytes > 0 && layout.block_bytes % alignment == 0,
          "block_bytes must be a positive multiple of the alignment ", alignment, ", is ",
          layout.block_bytes);
  require(layout.v_offset_bytes >= 0 && layout.v_offset_bytes <= layout.block_bytes,
          "v_offset_bytes must lie within block_bytes ", layout.block_bytes, ", is ",
          layout.v_offset_bytes);
  require(spec.num_kv_heads >= 1 && spec.head_dim >= 1 && spec.value_dim >= 1,
          "num_kv_heads, head_dim and value_dim must be at least 1, are ", spec.num_kv_heads, ", ",
          spec.head_dim, ", ", spec.value_dim);
  require(spec.kv.block_size >= 1, "block_size must be at least 1, is ", spec.kv.block_size);
}

// The view of one layer, without its pointers.
KvCacheView layer_view(const AttentionSpec& spec, const KvLayout& layout, std::int64_t num_blocks) {
  KvCacheView view;
  view.k_strides = layout.k_strides;
  view.v_strides = spec.kv.v_in_k ? layout.k_strides : layout.v_strides;
  view.num_blocks = num_blocks;
  view.num_kv_heads = spec.num_kv_heads;
  view.head_dim = spec.head_dim;
  view.value_dim = spec.value_dim;
  view.format = spec.kv;
  view.format.layout = layout.id;
  view.opaque_k_bytes = layout.opaque_k_bytes;
  view.opaque_v_bytes = layout.opaque_v_bytes;
  return view;
}

// K and V of all blocks each in an area of their own.
void require_areas_fit(const KvLayout& layout) {
  require(layout.v_offset_bytes == 0, "with v_apart v_offset_bytes must be 0, is ",
          layout.v_offset_bytes);
  require(layout.opaque_v_bytes > 0, "with v_apart there must be bytes of V, are ",
          layout.opaque_v_bytes);
  require(layout.k_strides.block >= layout.opaque_k_bytes &&
              layout.v_strides.block >= layout.opaque_v_bytes &&
              checked_add(kCacheBytes, layout.k_strides.block, layout.v_strides.block) <=
                  layout.block_bytes,
          "the block strides of K and V must hold ", layout.opaque_k_bytes, " and ",
          layout.opaque_v_bytes, " bytes and together fit block_bytes ", layout.block_bytes,
          ", are ", layout.k_strides.block, " and ", layout.v_strides.block);
}

void require_opaque_fits(const AttentionSpec& spec, const KvLayout& layout) {
  const std::int64_t k_end = layout.opaque_k_bytes;
  const std::int64_t v_end = checked_add(kCacheBytes, layout.v_offset_bytes, layout.opaque_v_bytes);
  require(k_end > 0 && layout.opaque_v_bytes >= 0 && k_end <= layout.block_bytes &&
              v_end <= layout.block_bytes,
          "opaque bytes of K and V must lie within block_bytes ", layout.block_bytes, ", end at ",
          k_end, " and ", v_end);
  require(!spec.kv.v_in_k || layout.opaque_v_bytes == 0,
          "with v_in_k an opaque layout has no bytes of V, has ", layout.opaque_v_bytes);
  if (layout.v_apart) return require_areas_fit(layout);
  require(layout.opaque_v_bytes == 0 || k_end <= layout.v_offset_bytes,
          "opaque bytes of K must end before V at ", layout.v_offset_bytes, ", end at ", k_end);
  require(layout.k_strides.block == layout.block_bytes &&
              (layout.opaque_v_bytes == 0 || layout.v_strides.block == layout.block_bytes),
          "the block strides of an opaque layout must be block_bytes ", layout.block_bytes,
          ", are ", layout.k_strides.block, " and ", layout.v_strides.block);
}

// A record holds all elements of its block, and records follow each other without overlap.
void require_layout_fits(const AttentionSpec& spec, const KvLayout& layout) {
  require_record(spec, layout);
  if (is_opaque(layout.id)) return require_opaque_fits(spec, layout);
  require(!layout.v_apart, "only an opaque layout has v_apart, this is layout ",
          static_cast<int>(layout.id));
  require(layout.id == KvLayoutId::kPlain || layout.id == KvLayoutId::kPairTiled, "unknown layout ",
          static_cast<int>(layout.id));
  require(layout.id == KvLayoutId::kPlain || pair_tiled_layout_fits(spec),
          "the pair-tiled layout does not fit block_size ", spec.kv.block_size, ", head_dim ",
          spec.head_dim, ", value_dim ", spec.value_dim);
  const KvCacheView view = layer_view(spec, layout, 1);
  const std::int64_t element_bytes = dtype_bytes(spec.kv.dtype);
  const auto require_inside = [&](KvTensor tensor, std::int64_t offset_bytes) {
    const char* name = tensor == KvTensor::kK ? "K" : "V";
    const ElementRange range = element_range(view, tensor);
    const std::int64_t end = checked_add(kCacheBytes, offset_bytes, range.end * element_bytes);
    require(range.begin >= 0 && end <= layout.block_bytes, name, " of one block must lie within ",
            "block_bytes ", layout.block_bytes, ", ends at ", end);
    const std::int64_t stride = (tensor == KvTensor::kK ? view.k_strides : view.v_strides).block;
    require(stride == layout.block_bytes / element_bytes, "the block stride of ", name,
            " must cover the record, ", layout.block_bytes / element_bytes, " elements, is ",
            stride);
  };
  require_inside(KvTensor::kK, 0);
  if (!spec.kv.v_in_k) require_inside(KvTensor::kV, layout.v_offset_bytes);
}

}  // namespace

struct KvCache::Storage {
  Storage(DeviceMemory& memory_, std::int64_t size_bytes_, const Options& options)
      : memory(memory_),
        size_bytes(size_bytes_),
        num_blocks(options.num_blocks),
        on_host(options.on_host),
        data(on_host ? memory.allocate_host(size_bytes)
                     : memory.allocate(size_bytes, options.pages)) {}
  ~Storage() {
    if (on_host) {
      memory.free_host(data);
    } else {
      memory.free(data);
    }
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Sets `count` scales to 1 and waits for it.
  void set_to_one(float* scales, std::int64_t count) {
    const std::vector<float> ones(static_cast<std::size_t>(count), 1.0F);
    if (on_host) {
      std::copy(ones.begin(), ones.end(), scales);
      return;
    }
    memory.copy_to_device(scales, ones.data(), count * static_cast<std::int64_t>(sizeof(float)),
                          Stream{});
    memory.synchronize(Stream{});
  }

  DeviceMemory& memory;
  std::int64_t size_bytes;
  std::int64_t num_blocks;
  bool on_host;
  void* data;  // [size_bytes]
};

KvCache::KvCache(DeviceMemory& memory, const AttentionSpec& spec, const KvLayout& layout,
                 const Options& options) {
  require_options(options);
  require_layout_fits(spec, layout);
  const ScaleShape scales = scale_shape(spec, layout, options.num_blocks);
  const LayerMap map = make_layer_map(spec, layout, scales, options.num_blocks);
  // Room to align the first layer; every other one follows at a multiple of the alignment.
  const std::int64_t size_bytes =
      checked_add(kCacheBytes, checked_mul(kCacheBytes, map.layer_bytes, options.num_layers),
                  layout.alignment - kAllocationAlignment);
  storage_ = std::make_unique<Storage>(memory, size_bytes, options);

  const auto address = reinterpret_cast<std::uintptr_t>(storage_->data);
  const auto alignment = static_cast<std::uintptr_t>(layout.alignment);
  std::byte* first =
      static_cast<std::byte*>(storage_->data) + (alignment - address % alignment) % alignment;
  const bool caller_scales = spec.kv.scales == ScaleGranularity::kPerTensor ||
                             spec.kv.scales == ScaleGranularity::kPerHead;
  const std::int64_t v_begin_bytes = record_extent(layout, options.num_blocks).v_begin_bytes;
  layers_.reserve(static_cast<std::size_t>(options.num_layers));
  for (int i = 0; i < options.num_layers; ++i) {
    std::byte* base = first + i * map.layer_bytes;
    KvCacheView view = layer_view(spec, layout, options.num_blocks);
    view.k = base;
    view.v = spec.kv.v_in_k ? base : base + v_begin_bytes;
    view.device = options.on_host ? Device{} : memory.device();
    if (scales.count > 0) {
      view.k_scales = {reinterpret_cast<float*>(base + map.k_scales_bytes), scales.strides};
      view.v_scales = {reinterpret_cast<float*>(base + map.v_scales_bytes), scales.strides};
    }
    if (caller_scales) {
      storage_->set_to_one(view.k_scales.data, scales.count);
      if (!spec.kv.v_in_k) storage_->set_to_one(view.v_scales.data, scales.count);
    }
    layers_.push_back(view);
  }
  if (!is_opaque(layout.id)) require_distinct_elements(layers_.front());
}

KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const KvCacheView& KvCache::layer(int index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < layers_.size(), "layer ", index,
          " does not exist, the cache has layers: ", layers_.size());
  return layers_[static_cast<std::size_t>(index)];
}

std::int64_t KvCache::num_blocks() const noexcept {
  return storage_ == nullptr ? 0 : storage_->num_blocks;
}

std::int64_t KvCache::size_bytes() const noexcept {
  return storage_ == nullptr ? 0 : storage_->size_bytes;
}

}  // namespace quire
