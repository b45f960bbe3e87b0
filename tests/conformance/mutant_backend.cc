// SPDX-License-Identifier: Apache-2.0
#include "mutant_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/number_formats.h"
#include "base/tensor_element.h"
#include "layout/kv_copy.h"
#include "layout/kv_offset.h"
#include "mutant_attention.h"

namespace quire::conformance {
namespace {

using Index = std::int64_t;
constexpr float kInfinity = HUGE_VALF;
constexpr std::int64_t kWorkspaceBytes = 64;

constexpr std::array<const char*, static_cast<std::size_t>(Bug::kNumBugs)> kNames = {
    "none",
    "window_left_short",
    "window_left_long",
    "window_right_long",
    "top_left_causal",
    "causal_strict",
    "chunk_shifted",
    "chunk_truncates",
    "negative_positions_clamped",
    "tree_msb_first",
    "tree_and_causal",
    "tree_rows_unpadded",
    "depth_ignored",
    "depth_of_query_only",
    "depth_of_plain_sequence",
    "softcap_after_bias",
    "softcap_ignored",
    "alibi_sign",
    "alibi_without_abs",
    "alibi_of_key_only",
    "alibi_slope_of_kv_head",
    "bias_by_padded_row",
    "bias_of_kv_head",
    "bias_of_first_sequence",
    "bias_added_to_nan",
    "lse_base_2",
    "lse_with_sink",
    "sink_twice",
    "sink_ignored",
    "empty_row_divides",
    "empty_row_lse_zero",
    "no_maximum",
    "no_rescale",
    "loses_one_key_of_many",
    "counts_one_key_twice",
    "scores_in_bf16",
    "accumulates_in_bf16",
    "stale_block",
    "table_of_previous_sequence",
    "reads_past_length",
    "zero_times_nan",
    "head_modulo",
    "v_in_k_from_the_end",
    "ragged_from_zero",
    "block_id_in_16_bits",
    "scale_of_first_token",
    "scale_of_first_head",
    "scale_of_k",
    "dense_query",
    "dense_lse",
    "v_strides_of_k",
    "ignores_ends",
    "writes_padding_rows",
    "truncates_fp8",
    "int8_to_127",
    "infinity_kept",
    "scale_by_reciprocal",
    "amax_of_infinity",
    "tiny_scale",
    "scale_of_448",
    "touches_neighbour",
    "stores_padding_slots",
    "merge_unguarded",
    "merge_sink_per_partial",
    "merge_lse_base_2",
    "copy_forgets_scales",
    "copy_first_layer_only",
    "region_is_block",
    "splits_by_batch",
    "drops_last_split",
    "state_not_reset",
    "stale_plan",
    "workspace_overrun",
};

// f32 to a code of the cache, with the rounding bugs.
float code_of(Bug bug, DType dtype, float x) {
  if (bug == Bug::kInt8To127 && dtype == DType::kI8) return std::max(x, -127.0F);
  const bool is_fp8 = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
  if (bug != Bug::kTruncatesFp8 || !is_fp8 || !std::isfinite(x)) return x;
  float code = 0;
  store_float(dtype, &code, 0, x);
  if (std::abs(load_float(dtype, &code, 0)) <= std::abs(x)) return load_float(dtype, &code, 0);
  std::uint8_t bits = 0;
  std::memcpy(&bits, &code, 1);
  --bits;  // one step towards 0
  std::memcpy(&code, &bits, 1);
  return load_float(dtype, &code, 0);
}

struct Store {
  Bug bug;
  const KvCacheView& cache;
  KvTensor tensor;
  const TensorView& rows;

  bool has(Bug which) const { return bug == which; }
  bool is_k() const { return tensor == KvTensor::kK; }
  void* data() const { return is_k() ? cache.k : cache.v; }
  Index dims() const { return is_k() ? cache.head_dim : cache.value_dim; }

  float amax(Index i, Index head) const {
    float result = 0;
    for (Index d = 0; d < dims(); ++d) {
      const float x = load_element(rows, i, head, d);
      const float magnitude =
          has(Bug::kAmaxOfInfinity) && std::isinf(x) ? kInfinity : finite_magnitude(x);
      result = std::max(result, magnitude);
    }
    return result;
  }

  void row(Index i, Index slot, Index head) const {
    const DType dtype = cache.format.dtype;
    const Index block = slot / cache.format.block_size;
    const Index token = slot % cache.format.block_size;
    float scale = 1.0F;
    if (cache.format.scales != ScaleGranularity::kNone) {
      const KvScales& scales = is_k() ? cache.k_scales : cache.v_scales;
      float& stored = scales.data[scale_offset(scales, block, head, token)];
      if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
        const DType range =
            has(Bug::kScaleOf448) && dtype == DType::kF8E5M2 ? DType::kF8E4M3 : dtype;
        const float largest = amax(i, head);
        stored =
            has(Bug::kTinyScale) ? largest / max_finite(range) : token_head_scale(range, largest);
      }
      scale = stored;
    }
    for (Index d = 0; d < dims(); ++d) {
      const float x = load_element(rows, i, head, d);
      const float quotient = has(Bug::kScaleByReciprocal) ? x * (1.0F / scale) : x / scale;
      const Index offset = element_offset(cache, tensor, block, head, token, d);
      store_float(dtype, data(), offset, code_of(bug, dtype, quotient));
      if (has(Bug::kInfinityKept) && dtype == DType::kF8E5M2 && std::isinf(quotient)) {
        static_cast<std::uint8_t*>(data())[offset] = quotient > 0 ? 0x7c : 0xfc;
      }
    }
    if (has(Bug::kTouchesNeighbour) && token + 1 < cache.format.block_size) {
      store_float(dtype, data(), element_offset(cache, tensor, block, head, token + 1, 0), 0.0F);
    }
  }
};

}  // namespace

const char* bug_name(Bug bug) noexcept {
  return kNames[static_cast<std::size_t>(bug)];
}

std::vector<Bug> all_bugs() {
  std::vector<Bug> bugs;
  for (std::size_t n = 0; n < kNames.size(); ++n) bugs.push_back(static_cast<Bug>(n));
  return bugs;
}

BackendInfo MutantBackend::info() const {
  return {.name = "mutant",
          .version = "",
          .isa = bug_name(bug_),
          .device = {},
          .batch_invariant = true};
}

WorkspaceSize MutantBackend::do_workspace(const AttentionSpec& /*spec*/,
                                          const BatchBounds& /*bounds*/) const {
  return {.host_bytes = kWorkspaceBytes, .device_bytes = 0};
}

std::unique_ptr<PreparedBatch> MutantBackend::do_make_prepared(const AttentionSpec& spec,
                                                               const BatchBounds& bounds,
                                                               const Workspace& workspace) {
  last_ = nullptr;
  planned_sequences_ = last_sequences_ = -1;
  return HostBackend::do_make_prepared(spec, bounds, workspace);
}

void MutantBackend::do_prepare(PreparedBatch& prepared, Stream /*stream*/) {
  const std::int64_t now = prepared.batch().num_sequences();
  planned_sequences_ =
      bug_ == Bug::kStalePlan && last_sequences_ >= 0 ? std::min(last_sequences_, now) : now;
  last_sequences_ = now;
}

void MutantBackend::do_append(const PreparedBatch& prepared, const NewKv& new_kv,
                              const KvCacheView& cache, Stream /*stream*/) {
  const ArrayView<std::int64_t> slots = prepared.batch().kv.slots;
  for (Index i = 0; i < slots.size; ++i) {
    Index slot = slots[i];
    if (slot < 0 && bug_ == Bug::kStoresPaddingSlots) slot = 0;
    if (slot < 0) continue;
    for (Index head = 0; head < cache.num_kv_heads; ++head) {
      Store{bug_, cache, KvTensor::kK, new_kv.k}.row(i, slot, head);
      if (!cache.format.v_in_k) Store{bug_, cache, KvTensor::kV, new_kv.v}.row(i, slot, head);
    }
  }
}

void MutantBackend::do_attend(const PreparedBatch& prepared, const AttentionParams& params,
                              const TensorView& q, const KvSource& source,
                              const AttentionOutput& output, Stream /*stream*/) {
  if (bug_ == Bug::kWorkspaceOverrun) {
    static_cast<unsigned char*>(prepared.workspace().host)[kWorkspaceBytes] = 0;
  }
  const bool is_second = last_ == &prepared;
  last_ = &prepared;
  const bool drop_last_split =
      bug_ == Bug::kDropsLastSplit || (bug_ == Bug::kStateNotReset && is_second);
  MutantAttention(bug_, prepared, params, q, source.cache, output)
      .run(planned_sequences_, drop_last_split);
}

void MutantBackend::do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                             const AttentionOutput& output, Stream /*stream*/) {
  const Index dim = output.out.shape[2];
  std::vector<float> out(static_cast<std::size_t>(dim));
  for (Index row = 0; row < output.out.shape[0]; ++row) {
    for (Index head = 0; head < output.out.shape[1]; ++head) {
      float max = -kInfinity;
      for (const Partial& p : partials) max = std::max(max, load_element(p.lse, row, head));
      float sum = 0;
      std::fill(out.begin(), out.end(), 0.0F);
      for (const Partial& p : partials) {
        const float lse = load_element(p.lse, row, head);
        if (lse == -kInfinity && bug_ != Bug::kMergeUnguarded) continue;
        const float weight = std::exp(lse - max);
        sum += weight;
        for (Index d = 0; d < dim; ++d) {
          out[static_cast<std::size_t>(d)] += weight * load_element(p.out, row, head, d);
        }
      }
      const bool is_empty = sum == 0;
      float lse = is_empty ? -kInfinity : max + std::log(sum);
      float factor = is_empty ? 0.0F : 1.0F / sum;
      const std::size_t times = bug_ == Bug::kMergeSinkPerPartial ? partials.size() : 1;
      for (std::size_t n = 0; n < times && !sinks.empty() && !is_empty; ++n) {
        factor /= 1.0F + std::exp(sinks[head] - lse);
      }
      if (bug_ == Bug::kMergeLseBase2) lse *= 1.44269504F;
      for (Index d = 0; d < dim; ++d) {
        store_element(output.out, out[static_cast<std::size_t>(d)] * factor, row, head, d);
      }
      if (output.lse.present()) store_element(output.lse, lse, row, head);
    }
  }
}

void MutantBackend::do_copy_blocks(std::span<const KvCacheView> src,
                                   std::span<const KvCacheView> dst,
                                   std::span<const BlockCopy> copies, Stream stream) {
  if (bug_ == Bug::kCopyFirstLayerOnly && !src.empty()) {
    HostBackend::do_copy_blocks(src.first(1), dst.first(1), copies, stream);
    return;
  }
  if (bug_ != Bug::kCopyForgetsScales) {
    HostBackend::do_copy_blocks(src, dst, copies, stream);
    return;
  }
  std::vector<KvCacheView> from(src.begin(), src.end());
  std::vector<KvCacheView> to(dst.begin(), dst.end());
  for (std::vector<KvCacheView>* views : {&from, &to}) {
    for (KvCacheView& view : *views) view.format.scales = ScaleGranularity::kNone;
  }
  HostBackend::do_copy_blocks(from, to, copies, stream);
}

void MutantBackend::do_copy_region(std::span<const KvCacheView> src,
                                   std::span<const KvCacheView> dst, const BlockRegionCopy& copy,
                                   Stream stream) {
  if (bug_ == Bug::kRegionIsBlock) {
    HostBackend::do_copy_blocks(src, dst, {&copy.blocks, 1}, stream);
  } else {
    HostBackend::do_copy_region(src, dst, copy, stream);
  }
}

}  // namespace quire::conformance
