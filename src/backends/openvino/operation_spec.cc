// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/operation_spec.h"

#include "base/check.h"

namespace quire::openvino {
namespace {

constexpr int kFirstLayout = static_cast<int>(KvLayoutId::kFirstPrivate) + 16;
constexpr int kNumElements = 4;

CacheElement element_for(const AttentionSpec& spec, bool in_bf16) {
  switch (spec.kv.dtype) {
    case DType::kF16:
      return CacheElement::kF16;
    case DType::kBF16:
      return in_bf16 ? CacheElement::kBF16 : CacheElement::kF32;
    case DType::kI8:
      return CacheElement::kU8;
    default:
      return CacheElement::kF32;
  }
}

void refuse_masks(const AttentionSpec& spec, std::vector<std::string>& reasons) {
  if (spec.alignment == Alignment::kUnaligned) {
    reasons.emplace_back("cross-attention: the operation stores the keys of its own queries");
  } else if (!spec.mask.causal) {
    reasons.emplace_back("attention without a causal mask: the operation is causal");
  }
  if (spec.mask.chunk > 0) reasons.emplace_back("chunks are no mask of the operation");
  if (spec.features.tree_mask) reasons.emplace_back("tree masks are not handed to the operation");
}

void refuse_scores(const AttentionSpec& spec, bool has_sinks, std::vector<std::string>& reasons) {
  if (spec.features.softcap) reasons.emplace_back("the operation has no softcap");
  if (spec.features.bias) reasons.emplace_back("the operation has no bias");
  if (spec.features.lse) reasons.emplace_back("the operation does not return lse");
  if (spec.features.alibi && spec.mask.window_left >= 0) {
    reasons.emplace_back("the operation does not combine ALiBi with a window");
  }
  if (spec.features.sinks && !has_sinks) {
    reasons.emplace_back("the operation of this version has no sinks");
  }
}

void refuse_cache(const AttentionSpec& spec, std::vector<std::string>& reasons) {
  if (spec.kv.block_size != kBlockSize) {
    reasons.push_back(concat("blocks of ", spec.kv.block_size,
                             " tokens: the operation has blocks of ", kBlockSize));
  }
  if (spec.kv.v_in_k) reasons.emplace_back("V in K: the operation keeps two tensors");
  const DType dtype = spec.kv.dtype;
  if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) {
    reasons.push_back(concat("K and V of ", dtype_name(dtype), " are no cache of the operation"));
  }
  if (dtype == DType::kI8 && spec.kv.scales != ScaleGranularity::kPerTokenHead) {
    reasons.push_back(concat("scales ", scale_granularity_name(spec.kv.scales),
                             ": the operation computes scales of its own"));
  }
}

}  // namespace

const char* level_name(Level level) noexcept {
  return level == Level::kBF16 ? "bf16" : "f32";
}

KvLayoutId layout_id(CacheElement element) noexcept {
  return static_cast<KvLayoutId>(kFirstLayout + static_cast<int>(element));
}

std::optional<CacheElement> element_of(KvLayoutId layout) noexcept {
  const int index = static_cast<int>(layout) - kFirstLayout;
  if (index < 0 || index >= kNumElements) return std::nullopt;
  return static_cast<CacheElement>(index);
}

ModelKey model_key(const AttentionSpec& spec, Level level) {
  const bool bf16_cache = spec.kv.dtype == DType::kBF16 || spec.kv.dtype == DType::kI8;
  ModelKey key;
  key.num_q_heads = spec.num_q_heads;
  key.num_kv_heads = spec.num_kv_heads;
  key.head_dim = spec.head_dim;
  key.value_dim = spec.value_dim;
  key.q_dtype = spec.q_dtype;
  key.in_bf16 = level == Level::kBF16 && bf16_cache && spec.q_dtype == DType::kBF16 &&
                spec.out_dtype == DType::kBF16;
  key.cache = element_for(spec, key.in_bf16);
  return key;
}

std::vector<std::string> refusals(const AttentionSpec& spec, bool has_sinks) {
  std::vector<std::string> reasons;
  refuse_masks(spec, reasons);
  refuse_scores(spec, has_sinks, reasons);
  refuse_cache(spec, reasons);
  return reasons;
}

KvLayout cache_layout(CacheElement element, const CacheForm& form) {
  KvLayout layout;
  layout.id = layout_id(element);
  layout.v_apart = true;
  layout.opaque_k_bytes = layout.k_strides.block = form.k.block_bytes();
  layout.opaque_v_bytes = layout.v_strides.block = form.v.block_bytes();
  const std::int64_t both = layout.opaque_k_bytes + layout.opaque_v_bytes;
  layout.block_bytes = (both + layout.alignment - 1) / layout.alignment * layout.alignment;
  return layout;
}

}  // namespace quire::openvino
