// SPDX-License-Identifier: Apache-2.0
// For tests: one layer of a cache in every form, between guard bytes, all of it filled with values
// that differ from byte to byte. A test compares whole images, so that a byte written where none
// should be is as visible as a wrong one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {

enum class ImageForm : std::uint8_t {
  kRecords,    // plain_layout
  kTiled,      // pair_tiled_layout
  kHeadToken,  // K and V apart, [block, head, token, dim], dense
  kTokenHead,  // K and V apart, [block, token, head, dim], with gaps along every axis
  kPerToken,   // [block, head, token, K dims then V dims]; not with v_in_k
  kReversed,   // K and V apart, [block, head, token, dim], tokens and blocks backwards
};
inline constexpr ImageForm kImageForms[] = {ImageForm::kRecords,   ImageForm::kTiled,
                                            ImageForm::kHeadToken, ImageForm::kTokenHead,
                                            ImageForm::kPerToken,  ImageForm::kReversed};

// Small numbers spread over all bits.
constexpr std::uint32_t scramble(std::uint32_t x) noexcept {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

class CacheImage {
 public:
  // Not every spec has every form.
  static bool possible(const AttentionSpec& spec, ImageForm form) {
    if (form == ImageForm::kTiled) return pair_tiled_layout_fits(spec);
    return form != ImageForm::kPerToken || !spec.kv.v_in_k;
  }

  // REQUIRES: possible(spec, form).
  CacheImage(const AttentionSpec& spec, ImageForm form, std::int64_t num_blocks, std::uint32_t seed)
      : spec_(spec), num_blocks_(num_blocks) {
    spec_.kv.layout = KvLayoutId::kPlain;
    const std::int64_t rows = num_blocks * spec.num_kv_heads * spec.kv.block_size;
    // Room for records with their padding, and for rows with the largest gaps after K and V.
    const std::int64_t record_bytes = plain_layout(spec_).block_bytes;
    const std::int64_t row_bytes =
        (spec.head_dim + spec.value_dim + 20) * dtype_bytes(spec.kv.dtype);
    bytes_.resize(
        static_cast<std::size_t>(2 * kGuardBytes + num_blocks * record_bytes + rows * row_bytes));
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] =
          static_cast<unsigned char>(scramble(static_cast<std::uint32_t>(i) + seed * 7919U));
    }
    switch (form) {
      case ImageForm::kRecords:
        set_records(plain_layout(spec_));
        break;
      case ImageForm::kTiled:
        set_records(pair_tiled_layout(spec_));
        break;
      case ImageForm::kHeadToken:
        set_apart({.block = 0, .head = 0, .token = 0}, KvOrder::kBlockHeadTokenDim, false);
        break;
      case ImageForm::kTokenHead:
        set_apart({.block = 5, .head = 2, .token = 3}, KvOrder::kBlockTokenHeadDim, false);
        break;
      case ImageForm::kPerToken:
        set_per_token();
        break;
      case ImageForm::kReversed:
        set_apart({.block = 1, .head = 0, .token = 1}, KvOrder::kBlockHeadTokenDim, true);
        break;
    }
    set_scales(form, seed);
  }
  CacheImage(const CacheImage&) = delete;
  CacheImage& operator=(const CacheImage&) = delete;

  const KvCacheView& view() const { return view_; }
  std::vector<unsigned char>& bytes() { return bytes_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::vector<float>& scales() { return scales_; }
  const std::vector<float>& scales() const { return scales_; }

  // Where an element, or a scale, lies in bytes() and scales().
  std::size_t byte_of(KvTensor tensor, std::int64_t block, std::int64_t head, std::int64_t token,
                      std::int64_t dim) const {
    const void* base = tensor == KvTensor::kK ? view_.k : view_.v;
    const std::int64_t offset = element_offset(view_, tensor, block, head, token, dim);
    return static_cast<std::size_t>(static_cast<const unsigned char*>(base) - bytes_.data() +
                                    offset * dtype_bytes(spec_.kv.dtype));
  }
  std::size_t scale_of(KvTensor tensor, std::int64_t block, std::int64_t head,
                       std::int64_t token) const {
    const KvScales& scales = tensor == KvTensor::kK ? view_.k_scales : view_.v_scales;
    return static_cast<std::size_t>(scales.data - scales_.data() +
                                    scale_offset(scales, block, head, token));
  }

 private:
  static constexpr std::int64_t kGuardBytes = 128;

  unsigned char* aligned_start() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64 + 64;
  }

  void set_records(const KvLayout& layout) {
    view_.k = aligned_start();
    view_.v = aligned_start() + layout.v_offset_bytes;
    view_.k_strides = layout.k_strides;
    view_.v_strides = layout.v_strides;
    view_.num_blocks = num_blocks_;
    view_.num_kv_heads = spec_.num_kv_heads;
    view_.head_dim = spec_.head_dim;
    view_.value_dim = spec_.value_dim;
    view_.format = spec_.kv;
    view_.format.layout = layout.id;
  }

  // `gaps` elements are left free after each row, and so on outwards.
  MutableTensorView tensor(unsigned char* data, std::int64_t dims, const KvStrides& gaps,
                           KvOrder order, bool reversed) const {
    const std::int64_t heads = spec_.num_kv_heads;
    const std::int64_t tokens = spec_.kv.block_size;
    const bool head_first = order == KvOrder::kBlockHeadTokenDim;
    MutableTensorView view(
        data, spec_.kv.dtype,
        {num_blocks_, head_first ? heads : tokens, head_first ? tokens : heads, dims});
    const std::int64_t inner_gap = head_first ? gaps.token : gaps.head;
    const std::int64_t outer_gap = head_first ? gaps.head : gaps.token;
    view.strides[2] = dims + inner_gap;
    view.strides[1] = view.shape[2] * view.strides[2] + outer_gap;
    view.strides[0] = view.shape[1] * view.strides[1] + gaps.block;
    if (!reversed) return view;
    const std::int64_t last =
        (view.shape[0] - 1) * view.strides[0] + (view.shape[2] - 1) * view.strides[2];
    view.data = data + last * dtype_bytes(spec_.kv.dtype);
    view.strides[0] = -view.strides[0];
    view.strides[2] = -view.strides[2];
    return view;
  }

  void set_apart(const KvStrides& gaps, KvOrder order, bool reversed) {
    unsigned char* k_data = aligned_start();
    const MutableTensorView k = tensor(k_data, spec_.head_dim, gaps, order, reversed);
    const std::int64_t k_stride = k.strides[0] < 0 ? -k.strides[0] : k.strides[0];
    unsigned char* v_data = k_data + num_blocks_ * k_stride * dtype_bytes(spec_.kv.dtype);
    view_ = view_kv(spec_, order, k, tensor(v_data, spec_.value_dim, gaps, order, reversed));
  }

  void set_per_token() {
    const std::int64_t dims = spec_.head_dim + spec_.value_dim;
    const MutableTensorView both(aligned_start(), spec_.kv.dtype,
                                 {num_blocks_, spec_.num_kv_heads, spec_.kv.block_size, dims});
    view_ = split_kv(spec_, KvOrder::kBlockHeadTokenDim, KvPacking::kKvPerToken, both);
  }

  // All granularities in one array with gaps, in an order that follows from the form.
  void set_scales(ImageForm form, std::uint32_t seed) {
    if (spec_.kv.scales == ScaleGranularity::kNone) return;
    const std::int64_t heads = spec_.num_kv_heads;
    const std::int64_t tokens = spec_.kv.block_size;
    KvStrides strides;
    if (spec_.kv.scales == ScaleGranularity::kPerHead) strides = {0, 2, 0};
    if (spec_.kv.scales == ScaleGranularity::kPerTokenHead) {
      strides = form == ImageForm::kTokenHead ? KvStrides{2 * heads * tokens + 3, 2, 2 * heads}
                                              : KvStrides{heads * tokens, tokens, 1};
    }
    const std::int64_t count = num_blocks_ * (2 * heads * tokens + 3);
    scales_.resize(static_cast<std::size_t>(2 * count + 2));
    for (std::size_t i = 0; i < scales_.size(); ++i) {
      const std::uint32_t random = scramble(static_cast<std::uint32_t>(i) + seed * 104729U);
      scales_[i] = 0.25F + static_cast<float>(random % 4096) / 1024.0F;
    }
    view_.k_scales = {scales_.data() + 1, strides};
    view_.v_scales = {scales_.data() + 1 + (spec_.kv.v_in_k ? 0 : count), strides};
  }

  AttentionSpec spec_;
  std::int64_t num_blocks_;
  std::vector<unsigned char> bytes_;
  std::vector<float> scales_;
  KvCacheView view_;
};

inline std::string to_string(ImageForm form) {
  const char* const names[] = {"records",    "tiled",     "head-token",
                               "token-head", "per-token", "reversed"};
  return names[static_cast<int>(form)];
}

}  // namespace quire
