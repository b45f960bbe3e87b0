// SPDX-License-Identifier: Apache-2.0
#include "conformance/cache_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/number_formats.h"
#include "conformance/index.h"
#include "layout/kv_extent.h"

namespace quire::conformance {
namespace {

constexpr std::byte kInt8Poison{0x80};  // -128: int8 has no NaN

// Strides of one tensor of the caller, innermost axis 1 and last, with slack at every level.
struct CallerTensor {
  KvStrides strides;
  std::int64_t size = 0;  // elements
};

CallerTensor caller_tensor(const AttentionSpec& spec, KvOrder order, std::int64_t num_blocks,
                           std::int64_t dim, std::int64_t slack) {
  const std::int64_t heads = spec.num_kv_heads;
  const std::int64_t tokens = spec.kv.block_size;
  const std::int64_t inner = dim + slack;
  CallerTensor tensor;
  if (order == KvOrder::kBlockHeadTokenDim) {
    tensor.strides.token = inner;
    tensor.strides.head = tokens * inner + slack;
    tensor.strides.block = heads * tensor.strides.head + 2 * slack;
  } else {
    tensor.strides.head = inner;
    tensor.strides.token = heads * inner + slack;
    tensor.strides.block = tokens * tensor.strides.token + 2 * slack;
  }
  tensor.size = num_blocks * tensor.strides.block;
  return tensor;
}

MutableTensorView tensor_view(std::byte* base, const AttentionSpec& spec, KvOrder order,
                              std::int64_t num_blocks, std::int64_t dim, const KvStrides& strides,
                              Device device) {
  MutableTensorView view;
  view.data = base;
  view.dtype = spec.kv.dtype;
  view.rank = 4;
  const bool head_first = order == KvOrder::kBlockHeadTokenDim;
  const std::int64_t heads = spec.num_kv_heads;
  const std::int64_t tokens = spec.kv.block_size;
  view.shape = {num_blocks, head_first ? heads : tokens, head_first ? tokens : heads, dim};
  view.strides = {strides.block, head_first ? strides.head : strides.token,
                  head_first ? strides.token : strides.head, 1};
  view.device = device;
  return view;
}

// Dense, K and V in one tensor.
MutableTensorView packed_view(void* base, const AttentionSpec& spec, KvOrder order,
                              KvPacking packing, std::int64_t num_blocks, Device device) {
  const bool head_first = order == KvOrder::kBlockHeadTokenDim;
  const std::int64_t outer = head_first ? spec.num_kv_heads : spec.kv.block_size;
  const std::int64_t inner = head_first ? spec.kv.block_size : spec.num_kv_heads;
  const DType dtype = spec.kv.dtype;
  switch (packing) {
    case KvPacking::kKvFirst:
      return {base, dtype, {2, num_blocks, outer, inner, spec.head_dim}, device};
    case KvPacking::kKvPerBlock:
      return {base, dtype, {num_blocks, 2, outer, inner, spec.head_dim}, device};
    case KvPacking::kKvPerToken:
      break;
  }
  return {base, dtype, {num_blocks, outer, inner, spec.head_dim + spec.value_dim}, device};
}

std::int64_t slack_of(CacheStyle style) {
  return style == CacheStyle::kUnaligned ? 1 : 8;
}

std::int64_t lead_of(CacheStyle style) {
  return style == CacheStyle::kUnaligned ? 1 : 0;
}

// Two tensors of the caller in one allocation.
struct CallerPair {
  CallerTensor k;
  CallerTensor v;
  std::int64_t k_bytes = 0;  // where K begins
  std::int64_t v_bytes = 0;  // where V begins, on another cache line
  std::int64_t size_bytes = 0;
};

CallerPair caller_pair(const AttentionSpec& spec, KvOrder order, CacheStyle style,
                       std::int64_t num_blocks) {
  const std::int64_t slack = slack_of(style);
  const std::int64_t element_bytes = dtype_bytes(spec.kv.dtype);
  CallerPair pair;
  pair.k = caller_tensor(spec, order, num_blocks, spec.head_dim, slack);
  pair.v = caller_tensor(spec, order, num_blocks, spec.value_dim, slack);
  pair.k_bytes = lead_of(style) * element_bytes;
  pair.v_bytes = pair.k_bytes + ceil_div(pair.k.size * element_bytes, 64) * 64;
  pair.size_bytes = spec.kv.v_in_k ? pair.v_bytes : pair.v_bytes + pair.v.size * element_bytes;
  return pair;
}

std::int64_t caller_bytes(const AttentionSpec& spec, KvOrder order, CacheStyle style,
                          std::int64_t num_blocks) {
  if (style != CacheStyle::kPacked) return caller_pair(spec, order, style, num_blocks).size_bytes;
  return num_blocks * spec.num_kv_heads * spec.kv.block_size * (spec.head_dim + spec.value_dim) *
         dtype_bytes(spec.kv.dtype);
}

bool is_record(CacheStyle style) {
  return style == CacheStyle::kPreferred || style == CacheStyle::kPlainRecord ||
         style == CacheStyle::kPairTiled;
}

KvLayout record_layout(const AttentionBackend& backend, const AttentionSpec& spec,
                       CacheStyle style) {
  if (style == CacheStyle::kPreferred) return backend.preferred_layout(spec);
  return style == CacheStyle::kPairTiled ? pair_tiled_layout(spec) : plain_layout(spec);
}

// Scales of one block of one tensor, and slack.
std::int64_t scales_per_block(const AttentionSpec& spec) {
  return spec.num_kv_heads * std::int64_t{spec.kv.block_size} + 3;
}

std::int64_t num_scales(const AttentionSpec& spec, std::int64_t num_blocks) {
  switch (spec.kv.scales) {
    case ScaleGranularity::kNone:
      return 0;
    case ScaleGranularity::kPerTensor:
      return 1;
    case ScaleGranularity::kPerHead:
      return spec.num_kv_heads;
    case ScaleGranularity::kPerTokenHead:
      break;
  }
  return num_blocks * scales_per_block(spec);
}

}  // namespace

KvLayoutId CacheMemory::layout_of(const AttentionBackend& backend, const AttentionSpec& spec,
                                  CacheStyle style) {
  return is_record(style) ? record_layout(backend, spec, style).id : KvLayoutId::kPlain;
}

CacheMemory::CacheMemory(AttentionBackend& backend, const AttentionSpec& spec,
                         const Options& options)
    : backend_(backend), options_(options), is_record_(is_record(options.style)) {
  plain_spec_ = spec;
  if (is_opaque(spec.kv.layout)) plain_spec_.kv.layout = KvLayoutId::kPlain;
  if (is_record_) {
    layout_ = is_opaque(spec.kv.layout) ? plain_layout(plain_spec_)
                                        : record_layout(backend, spec, options.style);
  }
  num_image_blocks_ =
      options.blocks_in_image.empty() ? options.num_blocks : std::ssize(options.blocks_in_image);
  QUIRE_CHECK(is_record_ || options.blocks_in_image.empty());
  DeviceMemory& memory = backend.memory();

  const auto kv_size = [&](std::int64_t num_blocks) {
    if (is_record_) return num_blocks * layout_.block_bytes;
    return caller_bytes(spec, options.order, options.style, num_blocks);
  };
  kv_bytes_.assign(at(kv_size(num_image_blocks_)),
                   spec.kv.dtype == DType::kI8 ? kInt8Poison : kPoison);
  const std::int64_t tensors = spec.kv.v_in_k ? 1 : 2;
  scales_.assign(at(tensors * num_scales(spec, num_image_blocks_)),
                 std::numeric_limits<float>::quiet_NaN());
  kv_buffer_ = std::make_unique<DeviceBuffer>(memory, kv_size(options.num_blocks), options.place,
                                              layout_.alignment);
  scale_buffer_ = std::make_unique<DeviceBuffer>(
      memory, tensors * num_scales(spec, options.num_blocks) * std::int64_t{sizeof(float)},
      options.place);

  image_ = bind(plain_spec_, kv_bytes_.data(), scales_.data(), num_image_blocks_, {});
  stage_ = bind(plain_spec_, kv_buffer_->data(), static_cast<float*>(scale_buffer_->data()),
                options.num_blocks, kv_buffer_->device());
  view_ = stage_;
  plan_extents();
  if (is_opaque(spec.kv.layout)) make_opaque(spec);
}

KvCacheView CacheMemory::bind(const AttentionSpec& spec, void* kv, float* scales,
                              std::int64_t num_blocks, Device device) const {
  KvCacheView view;
  if (is_record_) {
    view.k = kv;
    view.v = static_cast<std::byte*>(kv) + layout_.v_offset_bytes;
    view.k_strides = layout_.k_strides;
    view.v_strides = spec.kv.v_in_k ? layout_.k_strides : layout_.v_strides;
    if (spec.kv.v_in_k) view.v = kv;
    view.num_blocks = num_blocks;
    view.num_kv_heads = spec.num_kv_heads;
    view.head_dim = spec.head_dim;
    view.value_dim = spec.value_dim;
    view.format = spec.kv;
    view.device = device;
  } else {
    view = bind_caller(spec, kv, num_blocks, device);
  }
  bind_scales(view, scales, num_blocks);
  return view;
}

KvCacheView CacheMemory::bind_caller(const AttentionSpec& spec, void* kv, std::int64_t num_blocks,
                                     Device device) const {
  const KvOrder order = options_.order;
  if (options_.style == CacheStyle::kPacked) {
    return split_kv(spec, order, options_.packing,
                    packed_view(kv, spec, order, options_.packing, num_blocks, device));
  }
  const CallerPair pair = caller_pair(spec, order, options_.style, num_blocks);
  auto* base = static_cast<std::byte*>(kv);
  const auto k_view = tensor_view(base + pair.k_bytes, spec, order, num_blocks, spec.head_dim,
                                  pair.k.strides, device);
  const auto v_view = tensor_view(base + pair.v_bytes, spec, order, num_blocks, spec.value_dim,
                                  pair.v.strides, device);
  if (options_.style != CacheStyle::kRagged) return view_kv(spec, order, k_view, v_view);
  const auto without_tokens = [](MutableTensorView view) {
    view.rank = 3;
    view.shape[2] = view.shape[3];
    view.strides[2] = 1;
    return view;
  };
  return view_ragged(spec, without_tokens(k_view), without_tokens(v_view));
}

void CacheMemory::bind_scales(KvCacheView& view, float* scales, std::int64_t num_blocks) const {
  const AttentionSpec& spec = plain_spec_;
  if (spec.kv.scales == ScaleGranularity::kNone) return;
  KvStrides strides;
  if (spec.kv.scales == ScaleGranularity::kPerHead) strides.head = 1;
  if (spec.kv.scales == ScaleGranularity::kPerTokenHead) {
    const bool head_first = options_.order == KvOrder::kBlockHeadTokenDim;
    strides.block = scales_per_block(spec);
    strides.head = head_first ? spec.kv.block_size : 1;
    strides.token = head_first ? 1 : spec.num_kv_heads;
  }
  view.k_scales = {scales, strides};
  view.v_scales = {scales + (spec.kv.v_in_k ? 0 : num_scales(spec, num_blocks)), strides};
}

void CacheMemory::plan_extents() {
  const auto kv_bytes = static_cast<std::int64_t>(kv_bytes_.size());
  const std::int64_t scale_bytes = std::ssize(scales_) * std::int64_t{sizeof(float)};
  if (options_.blocks_in_image.empty()) {
    kv_extents_ = {{0, 0, kv_bytes}};
    scale_extents_ = {{0, 0, scale_bytes}};
    return;
  }
  const bool per_token = plain_spec_.kv.scales == ScaleGranularity::kPerTokenHead;
  if (!per_token) scale_extents_ = {{0, 0, scale_bytes}};
  const std::int64_t each_scale = scales_per_block(plain_spec_) * std::int64_t{sizeof(float)};
  const int tensors = plain_spec_.kv.v_in_k ? 1 : 2;
  for (std::int64_t n = 0; n < num_image_blocks_; ++n) {
    const std::int64_t block = options_.blocks_in_image[at(n)];
    kv_extents_.push_back(
        {block * layout_.block_bytes, n * layout_.block_bytes, layout_.block_bytes});
    for (int tensor = 0; per_token && tensor < tensors; ++tensor) {
      scale_extents_.push_back({(tensor * options_.num_blocks + block) * each_scale,
                                (tensor * num_image_blocks_ + n) * each_scale, each_scale});
    }
  }
}

void CacheMemory::make_opaque(const AttentionSpec& spec) {
  const KvLayout layout = backend_.preferred_layout(spec);
  const RecordExtent extent = record_extent(layout, options_.num_blocks);
  opaque_buffer_ = std::make_unique<DeviceBuffer>(backend_.memory(), extent.size_bytes,
                                                  options_.place, layout.alignment);
  view_.k = opaque_buffer_->data();
  view_.v = static_cast<std::byte*>(view_.k) + (spec.kv.v_in_k ? 0 : extent.v_begin_bytes);
  view_.k_strides = layout.k_strides;
  view_.v_strides = spec.kv.v_in_k ? layout.k_strides : layout.v_strides;
  view_.opaque_k_bytes = layout.opaque_k_bytes;
  view_.opaque_v_bytes = layout.opaque_v_bytes;
  view_.format = spec.kv;
  if (spec.kv.scales == ScaleGranularity::kPerTokenHead) {  // inside the blocks
    view_.k_scales = {};
    view_.v_scales = {};
  }
}

// Every block of the image to its own place.
std::vector<BlockCopy> CacheMemory::image_copies() const {
  std::vector<BlockCopy> copies;
  for (std::int64_t n = 0; n < num_image_blocks_; ++n) {
    const auto block = static_cast<std::int32_t>(n);
    const bool is_all = options_.blocks_in_image.empty();
    const std::int32_t place = is_all ? block : options_.blocks_in_image[at(n)];
    copies.push_back({place, place});
  }
  return copies;
}

std::int64_t CacheMemory::image_block(std::int64_t block) const noexcept {
  if (options_.blocks_in_image.empty()) return block;
  const auto& blocks = options_.blocks_in_image;
  return std::find(blocks.begin(), blocks.end(), block) - blocks.begin();
}

void CacheMemory::set_row(KvTensor tensor, std::int64_t slot, std::int64_t head,
                          const float* stored, float scale) {
  const std::int64_t block = image_block(slot / image_.format.block_size);
  const std::int64_t token = slot % image_.format.block_size;
  const bool is_k = tensor == KvTensor::kK;
  void* base = is_k ? image_.k : image_.v;
  for (int d = 0; d < (is_k ? image_.head_dim : image_.value_dim); ++d) {
    store_float(image_.format.dtype, base, element_offset(image_, tensor, block, head, token, d),
                stored[d]);
  }
  if (image_.format.scales != ScaleGranularity::kPerTokenHead) return;
  const KvScales& scales = is_k ? image_.k_scales : image_.v_scales;
  scales.data[scale_offset(scales, block, head, token)] = scale;
}

void CacheMemory::set_caller_scale(KvTensor tensor, std::int64_t head, float scale) {
  if (image_.format.scales == ScaleGranularity::kNone) return;
  const KvScales& scales = tensor == KvTensor::kK ? image_.k_scales : image_.v_scales;
  scales.data[scale_offset(scales, 0, head, 0)] = scale;
}

std::byte* CacheMemory::element(KvTensor tensor, std::int64_t block, std::int64_t head,
                                std::int64_t token, std::int64_t d) const {
  void* base = tensor == KvTensor::kK ? image_.k : image_.v;
  return static_cast<std::byte*>(base) +
         element_offset(image_, tensor, image_block(block), head, token, d) *
             dtype_bytes(image_.format.dtype);
}

void CacheMemory::expect_copy(const CacheMemory& from, const BlockCopy& blocks,
                              std::int64_t first_token, std::int64_t num_tokens) {
  const auto copy_row = [&](KvTensor tensor, std::int64_t head, std::int64_t token) {
    const bool is_k = tensor == KvTensor::kK;
    for (std::int64_t d = 0; d < (is_k ? image_.head_dim : image_.value_dim); ++d) {
      std::memcpy(element(tensor, blocks.dst, head, token, d),
                  from.element(tensor, blocks.src, head, token, d),
                  at(dtype_bytes(image_.format.dtype)));
    }
    if (image_.format.scales != ScaleGranularity::kPerTokenHead) return;
    const KvScales& to_scales = is_k ? image_.k_scales : image_.v_scales;
    const KvScales& from_scales = is_k ? from.image_.k_scales : from.image_.v_scales;
    to_scales.data[scale_offset(to_scales, image_block(blocks.dst), head, token)] =
        from_scales.data[scale_offset(from_scales, from.image_block(blocks.src), head, token)];
  };
  for (std::int64_t head = 0; head < image_.num_kv_heads; ++head) {
    for (std::int64_t token = first_token; token < first_token + num_tokens; ++token) {
      copy_row(KvTensor::kK, head, token);
      if (!image_.format.v_in_k) copy_row(KvTensor::kV, head, token);
    }
  }
}

void CacheMemory::forget(std::int64_t slot) {
  const std::int64_t block_size = image_.format.block_size;
  forgotten_.resize(at(num_image_blocks_ * block_size), 0);
  forgotten_[at(image_block(slot / block_size) * block_size + slot % block_size)] = 1;
}

void CacheMemory::upload() {
  for (const Extent& extent : kv_extents_) {
    kv_buffer_->upload(kv_bytes_.data() + extent.in_image, extent.in_memory, extent.size);
  }
  const auto* scales = reinterpret_cast<const std::byte*>(scales_.data());
  for (const Extent& extent : scale_extents_) {
    scale_buffer_->upload(scales + extent.in_image, extent.in_memory, extent.size);
  }
  if (opaque_buffer_ == nullptr) return;
  backend_.import_blocks({&stage_, 1}, {&view_, 1}, image_copies());
  backend_.memory().synchronize({});
}

}  // namespace quire::conformance
