// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_list.h"

#include <algorithm>

#include "conformance/case_builder.h"
#include "conformance/index.h"

namespace quire::conformance {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_decode_cases(cases);
  add_prefill_cases(cases);
  add_mixed_cases(cases);
  add_cross_cases(cases);
  add_cache_cases(cases);
  add_merge_cases(cases);
  add_model_cases(cases);
  add_pair_cases(cases);
  add_one_call_cases(cases);
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return a.suite < b.suite; });
  return cases;
}

void CaseBuilder::add_to(std::vector<Case>& cases) {
  const bool has_tolerance = case_.check == Check::kAttend || case_.check == Check::kInvariance ||
                             case_.check == Check::kCascade;
  const std::vector<SequenceShape> once = case_.sequences;
  const std::int64_t outputs = num_tokens(case_) * case_.spec.num_q_heads * case_.spec.value_dim;
  const std::int64_t times = has_tolerance && outputs > 0 ? ceil_div(kMinOutputs, outputs) : 1;
  for (std::int64_t n = 1; n < times; ++n) {
    case_.sequences.insert(case_.sequences.end(), once.begin(), once.end());
  }
  cases.push_back(std::move(case_));
}

const std::vector<DType>& query_types() {
  static const std::vector<DType> types = {DType::kF32, DType::kF16, DType::kBF16};
  return types;
}

const std::vector<KvType>& kv_types() {
  using enum ScaleGranularity;
  static const std::vector<KvType> types = {
      {DType::kF32, kNone},         {DType::kF16, kNone},       {DType::kBF16, kNone},
      {DType::kF8E4M3, kPerTensor}, {DType::kF8E4M3, kPerHead}, {DType::kF8E4M3, kPerTokenHead},
      {DType::kF8E5M2, kPerTensor}, {DType::kF8E5M2, kPerHead}, {DType::kF8E5M2, kPerTokenHead},
      {DType::kI8, kPerTensor},     {DType::kI8, kPerHead},     {DType::kI8, kPerTokenHead},
  };
  return types;
}

std::string kv_type_name(const KvType& type) {
  switch (type.scales) {
    case ScaleGranularity::kNone:
      return dtype_name(type.dtype);
    case ScaleGranularity::kPerTensor:
      return concat(dtype_name(type.dtype), "_tensor");
    case ScaleGranularity::kPerHead:
      return concat(dtype_name(type.dtype), "_head");
    case ScaleGranularity::kPerTokenHead:
      break;
  }
  return concat(dtype_name(type.dtype), "_token_head");
}

const std::vector<NamedMask>& causal_masks() {
  static const std::vector<NamedMask> masks = {
      {"window_0", {.window_left = 0}},
      {"window_1", {.window_left = 1}},
      {"window_5", {.window_left = 5}},
      {"window_15", {.window_left = 15}},
      {"window_16", {.window_left = 16}},
      {"window_40", {.window_left = 40}},
      {"window_right_3", {.window_left = 9, .window_right = 3}},
      {"chunk_1", {.chunk = 1}},
      {"chunk_7", {.chunk = 7}},
      {"chunk_16", {.chunk = 16}},
      {"chunk_64", {.chunk = 64}},
      {"chunk_24_window_10", {.window_left = 10, .chunk = 24}},
  };
  return masks;
}

const std::vector<NamedMask>& two_sided_masks() {
  static const std::vector<NamedMask> masks = {
      {"all", {.causal = false}},
      {"window_4_4", {.causal = false, .window_left = 4, .window_right = 4}},
      {"window_0_7", {.causal = false, .window_left = 0, .window_right = 7}},
      {"window_right_0", {.causal = false, .window_right = 0}},
      {"window_left_6", {.causal = false, .window_left = 6}},
      {"chunk_10", {.causal = false, .chunk = 10}},
      {"chunk_32_window_8_2", {.causal = false, .window_left = 8, .window_right = 2, .chunk = 32}},
  };
  return masks;
}

const std::vector<NamedBias>& bias_styles() {
  static const std::vector<NamedBias> styles = {
      {"full", BiasStyle::kFull},
      {"shared_heads", BiasStyle::kSharedHeads},
      {"keys_only", BiasStyle::kKeysOnly},
      {"relative", BiasStyle::kRelative},
  };
  return styles;
}

const std::vector<NamedCache>& cache_places() {
  using enum KvOrder;
  using enum KvPacking;
  static const std::vector<NamedCache> places = {
      {"preferred", CacheStyle::kPreferred, kBlockHeadTokenDim, kKvFirst},
      {"plain", CacheStyle::kPlainRecord, kBlockHeadTokenDim, kKvFirst},
      {"pair_tiled", CacheStyle::kPairTiled, kBlockHeadTokenDim, kKvFirst},
      {"separate_htd", CacheStyle::kSeparate, kBlockHeadTokenDim, kKvFirst},
      {"separate_thd", CacheStyle::kSeparate, kBlockTokenHeadDim, kKvFirst},
      {"unaligned_htd", CacheStyle::kUnaligned, kBlockHeadTokenDim, kKvFirst},
      {"unaligned_thd", CacheStyle::kUnaligned, kBlockTokenHeadDim, kKvFirst},
      {"kv_first_htd", CacheStyle::kPacked, kBlockHeadTokenDim, kKvFirst},
      {"kv_first_thd", CacheStyle::kPacked, kBlockTokenHeadDim, kKvFirst},
      {"kv_per_block_htd", CacheStyle::kPacked, kBlockHeadTokenDim, kKvPerBlock},
      {"kv_per_block_thd", CacheStyle::kPacked, kBlockTokenHeadDim, kKvPerBlock},
      {"kv_per_token_htd", CacheStyle::kPacked, kBlockHeadTokenDim, kKvPerToken},
      {"kv_per_token_thd", CacheStyle::kPacked, kBlockTokenHeadDim, kKvPerToken},
  };
  return places;
}

}  // namespace quire::conformance
