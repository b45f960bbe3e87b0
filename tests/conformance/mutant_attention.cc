// SPDX-License-Identifier: Apache-2.0
#include "mutant_attention.h"

#include <algorithm>
#include <cmath>

#include "base/number_formats.h"
#include "base/tensor_element.h"
#include "layout/kv_offset.h"

namespace quire::conformance {
namespace {

using Index = std::int64_t;
constexpr float kInfinity = HUGE_VALF;
constexpr Index kSplit = 64;

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

Index floor_div_of(Index a, Index b) {
  return static_cast<Index>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}

float to_bf16(float x) {
  return to_float(from_float<BFloat16>(x));
}

}  // namespace

MutantAttention::Sequence MutantAttention::sequence(Index s) const {
  const ArrayView<std::int32_t>& begins = batch_.queries.begins;
  Sequence seq;
  seq.s = s;
  seq.first_row = begins[s];
  seq.q_len = batch_.queries.ends[s] - begins[s];
  if (has(Bug::kIgnoresEnds) && s + 1 < begins.size) seq.q_len = begins[s + 1] - begins[s];
  seq.kv_len = batch_.kv.lens[s];
  const TreeMask& tree = batch_.tree_mask;
  const bool has_tree = tree.present() && tree.begins[s] >= 0;
  if (has_tree) seq.tree = tree.bits.data + tree.begins[s];
  const bool has_depths = has_tree || (has(Bug::kDepthOfPlainSequence) && tree.present());
  if (has_depths && !tree.depths.empty() && !has(Bug::kDepthIgnored)) {
    seq.depths = tree.depths.data + seq.first_row;
  }
  return seq;
}

Index MutantAttention::query_position(const Sequence& seq, Index i) const {
  if (has(Bug::kTopLeftCausal)) return i;
  const Index position = seq.kv_len - seq.q_len + (seq.depths != nullptr ? seq.depths[i] : i);
  return has(Bug::kNegativePositionsClamped) ? std::max<Index>(position, 0) : position;
}

Index MutantAttention::key_position(const Sequence& seq, Index j) const {
  const Index new_key = j - (seq.kv_len - seq.q_len);
  if (seq.depths == nullptr || new_key < 0 || has(Bug::kDepthOfQueryOnly)) return j;
  return seq.kv_len - seq.q_len + seq.depths[new_key];
}

bool MutantAttention::in_tree(const Sequence& seq, Index i, Index new_key) const {
  const Index row_bytes = (seq.q_len + 7) / 8;
  const Index bit =
      has(Bug::kTreeRowsUnpadded) ? i * seq.q_len + new_key : i * row_bytes * 8 + new_key;
  const Index shift = has(Bug::kTreeMsbFirst) ? 7 - bit % 8 : bit % 8;
  return ((seq.tree[bit / 8] >> shift) & 1) != 0;
}

bool MutantAttention::is_visible(const Sequence& seq, Index i, Index j) const {
  if (j >= seq.kv_len) return has(Bug::kReadsPastLength);
  if (spec_.alignment == Alignment::kUnaligned) return true;
  const Mask& mask = spec_.mask;
  const Index query = query_position(seq, i);
  const Index key = key_position(seq, j);
  const Index new_key = j - (seq.kv_len - seq.q_len);
  if (mask.causal) {
    const bool is_past = has(Bug::kCausalStrict) ? key < query : key <= query;
    const bool by_tree = seq.tree != nullptr && new_key >= 0;
    if (by_tree && !in_tree(seq, i, new_key)) return false;
    if (!is_past && (!by_tree || has(Bug::kTreeAndCausal))) return false;
  }
  const Index left =
      mask.window_left - (has(Bug::kWindowLeftShort) ? 1 : 0) + (has(Bug::kWindowLeftLong) ? 1 : 0);
  const Index right = mask.window_right + (has(Bug::kWindowRightLong) ? 1 : 0);
  if (mask.window_left >= 0 && key < query - left) return false;
  if (mask.window_right >= 0 && key > query + right) return false;
  if (mask.chunk <= 0) return true;
  if (has(Bug::kChunkTruncates)) return key / mask.chunk == query / mask.chunk;
  const Index shift = has(Bug::kChunkShifted) ? 1 : 0;
  return floor_div_of(key + shift, mask.chunk) == floor_div_of(query, mask.chunk);
}

Index MutantAttention::kv_head_of(Index head) const {
  return has(Bug::kHeadModulo) ? head % spec_.num_kv_heads : head / spec_.head_group();
}

// Entries that no row should need are garbage; a bug that reads them must not crash the test.
Index MutantAttention::slot_of(const Sequence& seq, Index j) const {
  const BlockTables& tables = batch_.kv.blocks;
  if (tables.kind == BlockTables::Kind::kRagged) {
    const Index row = (has(Bug::kRaggedFromZero) ? 0 : tables.rows[seq.s]) + j;
    return std::min(row, cache_.num_blocks - 1);
  }
  const Index block_size = spec_.kv.block_size;
  Index entry = (has(Bug::kStaleBlock) && j > 0 ? j - 1 : j) / block_size;
  Index s = seq.s;
  if (has(Bug::kTableOfPreviousSequence) && s > 0 && batch_.kv.lens[s - 1] > j) --s;
  entry +=
      tables.kind == BlockTables::Kind::kPadded ? s * tables.row_stride : Index{tables.begins[s]};
  Index block = tables.indices[std::min(entry, tables.indices.size - 1)];
  if (has(Bug::kBlockIdIn16Bits)) block &= 0xffff;
  block = ((block % cache_.num_blocks) + cache_.num_blocks) % cache_.num_blocks;
  return block * block_size + j % block_size;
}

void MutantAttention::load_row(Index slot, Index kv_head, bool is_k, float* row) const {
  const Index block = slot / spec_.kv.block_size;
  const Index token = slot % spec_.kv.block_size;
  const Index dims = is_k ? spec_.head_dim : spec_.value_dim;
  const bool v_of_k = !is_k && spec_.kv.v_in_k;
  const Index first = v_of_k && has(Bug::kVInKFromTheEnd) ? spec_.head_dim - dims : 0;
  const KvTensor tensor = is_k || v_of_k ? KvTensor::kK : KvTensor::kV;
  const KvScales& scales = is_k || has(Bug::kScaleOfK) ? cache_.k_scales : cache_.v_scales;
  float scale = 1.0F;
  if (spec_.kv.scales != ScaleGranularity::kNone) {
    const Index scale_head = has(Bug::kScaleOfFirstHead) ? 0 : kv_head;
    const Index scale_token = has(Bug::kScaleOfFirstToken) ? 0 : token;
    scale = scales.data[scale_offset(scales, block, scale_head, scale_token)];
  }
  const void* data = tensor == KvTensor::kK ? cache_.k : cache_.v;
  KvCacheView cache = cache_;
  if (has(Bug::kVStridesOfK) && spec_.head_dim <= spec_.value_dim) {
    cache.v_strides = cache.k_strides;
  }
  for (Index d = 0; d < dims; ++d) {
    const Index offset = element_offset(cache, tensor, block, kv_head, token, first + d);
    row[d] = load_float(spec_.kv.dtype, data, offset) * scale;
  }
}

void MutantAttention::load(const Sequence& seq, Index kv_head, Index j) {
  if (loaded_.is_loaded[at(j)] != 0) return;
  loaded_.is_loaded[at(j)] = 1;
  const Index slot = slot_of(seq, j);
  load_row(slot, kv_head, true, loaded_.k.data() + j * spec_.head_dim);
  load_row(slot, kv_head, false, loaded_.v.data() + j * spec_.value_dim);
}

float MutantAttention::bias_of(const Sequence& seq, Index head, Index i, Index j) const {
  if (!params_.bias.present() || j >= seq.kv_len) return 0.0F;
  const Index row = has(Bug::kBiasByPaddedRow) ? seq.first_row + i : i;
  const Index bias_head = has(Bug::kBiasOfKvHead) ? kv_head_of(head) : head;
  const Index s = has(Bug::kBiasOfFirstSequence) ? 0 : seq.s;
  return load_element(params_.bias, s, bias_head, std::min(row, params_.bias.shape[2] - 1), j);
}

float MutantAttention::score(const Sequence& seq, Index head, Index i, Index j) {
  const float bias = bias_of(seq, head, i, j);
  if (bias == -kInfinity && !has(Bug::kBiasAddedToNaN) && !has(Bug::kSoftcapAfterBias)) {
    return -kInfinity;
  }
  load(seq, kv_head_of(head), j);
  const float* k = loaded_.k.data() + j * spec_.head_dim;
  float dot = 0;
  TensorView q = q_;
  if (has(Bug::kDenseQuery)) {
    q.strides = {spec_.num_q_heads * q.shape[2], q.shape[2], 1};
  }
  for (Index d = 0; d < spec_.head_dim; ++d) {
    dot += load_element(q, seq.first_row + i, head, d) * k[d];
  }
  float x = params_.scale * dot;
  const auto cap = [&] {
    if (params_.softcap > 0 && !has(Bug::kSoftcapIgnored)) {
      x = params_.softcap * std::tanh(x / params_.softcap);
    }
  };
  if (!has(Bug::kSoftcapAfterBias)) cap();
  if (!params_.alibi_slopes.empty()) {
    const auto distance = static_cast<float>(query_position(seq, i) - key_position(seq, j));
    const float slope =
        params_.alibi_slopes[has(Bug::kAlibiSlopeOfKvHead) ? kv_head_of(head) : head];
    float penalty = slope * (has(Bug::kAlibiWithoutAbs) ? distance : std::abs(distance));
    if (has(Bug::kAlibiOfKeyOnly)) penalty = -slope * static_cast<float>(key_position(seq, j));
    x -= has(Bug::kAlibiSign) ? -penalty : penalty;
  }
  x += bias;
  if (has(Bug::kSoftcapAfterBias)) cap();
  return has(Bug::kScoresInBf16) ? to_bf16(x) : x;
}

// exp(S - max) and its sums over the keys [begin, end), key by key.
MutantAttention::State MutantAttention::attend_split(const Sequence& seq, Index head, Index i,
                                                     Index begin, Index end) {
  State state{.max = -kInfinity, .sum = 0, .out = std::vector<float>(at(spec_.value_dim))};
  Index last = -1;
  for (Index j = begin; j < end; ++j) {
    const float x = is_visible(seq, i, j) ? score(seq, head, i, j) : -kInfinity;
    if (x == -kInfinity) continue;
    const bool at_border = seq.kv_len > 2000 && j == 1023;
    if (has(Bug::kLosesOneKeyOfMany) && at_border) continue;
    last = j;
    const float max = has(Bug::kNoMaximum) ? 0.0F : std::max(state.max, x);
    const float rescale = state.sum == 0 || has(Bug::kNoRescale) ? 1.0F : std::exp(state.max - max);
    const float p = std::exp(x - max) * (has(Bug::kCountsOneKeyTwice) && at_border ? 2.0F : 1.0F);
    state.max = max;
    state.sum = state.sum * rescale + p;
    const float* v = loaded_.v.data() + j * spec_.value_dim;
    for (Index d = 0; d < spec_.value_dim; ++d) {
      float& out = state.out[at(d)];
      out = out * rescale + p * v[d];
      if (has(Bug::kAccumulatesInBf16)) out = to_bf16(out);
    }
  }
  if (!has(Bug::kZeroTimesNaN) || last < 0) return state;
  // The rest of the last tile, with weights of 0.
  std::vector<float> v(at(spec_.value_dim));
  const Index block_size = spec_.kv.block_size;
  for (Index j = last + 1; j % block_size != 0; ++j) {
    const Index slot = slot_of(seq, last) - last % block_size + j % block_size;
    load_row(slot, kv_head_of(head), false, v.data());
    for (Index d = 0; d < spec_.value_dim; ++d) state.out[at(d)] += 0.0F * v[at(d)];
  }
  return state;
}

void MutantAttention::join(State& all, const State& part) const {
  const float max = std::max(all.max, part.max);
  if (max == -kInfinity) return;
  const auto weight = [&](const State& state) {
    return state.max == -kInfinity ? 0.0F : std::exp(state.max - max);
  };
  const float a = weight(all);
  const float b = weight(part);
  all.sum = all.sum * a + part.sum * b;
  for (std::size_t d = 0; d < all.out.size(); ++d) all.out[d] = all.out[d] * a + part.out[d] * b;
  all.max = max;
}

void MutantAttention::store_row(Index row, Index head, State& state) const {
  const bool is_empty = state.sum == 0;
  float lse = is_empty ? -kInfinity : state.max + std::log(state.sum);
  const bool has_sink = !params_.sinks.empty() && !is_empty && !has(Bug::kSinkIgnored);
  const float sink = has_sink ? params_.sinks[head] : -kInfinity;
  float factor = is_empty && !has(Bug::kEmptyRowDivides) ? 0.0F : 1.0F / state.sum;
  if (has_sink) factor /= 1.0F + std::exp(sink - lse);
  if (has_sink && has(Bug::kSinkTwice)) factor /= 1.0F + std::exp(sink - lse);
  if (has_sink && has(Bug::kLseWithSink)) lse = std::log(std::exp(lse) + std::exp(sink));
  if (has(Bug::kLseBase2)) lse *= 1.44269504F;
  if (is_empty && has(Bug::kEmptyRowLseZero)) lse = 0;
  for (Index d = 0; d < spec_.value_dim; ++d) {
    store_element(output_.out, state.out[at(d)] * factor, row, head, d);
  }
  if (!output_.lse.present()) return;
  MutableTensorView lses = output_.lse;
  if (has(Bug::kDenseLse)) lses.strides = {spec_.num_q_heads, 1};
  store_element(lses, lse, row, head);
}

void MutantAttention::attend_row(const Sequence& seq, Index head, Index i, bool drop_last_split) {
  const Index split = has(Bug::kSplitsByBatch) ? kSplit / batch_.num_sequences() + 1 : kSplit;
  const bool past = has(Bug::kReadsPastLength) && seq.kv_len % spec_.kv.block_size != 0;
  const Index num_keys = seq.kv_len + (past ? 1 : 0);
  State all = attend_split(seq, head, i, 0, std::min(split, num_keys));
  for (Index begin = split; begin < num_keys; begin += split) {
    if (drop_last_split && begin + split >= num_keys) break;
    join(all, attend_split(seq, head, i, begin, std::min(begin + split, num_keys)));
  }
  store_row(seq.first_row + i, head, all);
}

void MutantAttention::write_padding_rows() const {
  for (Index row = 0; row < output_.out.shape[0]; ++row) {
    for (Index head = 0; head < spec_.num_q_heads; ++head) {
      for (Index d = 0; d < spec_.value_dim; ++d) store_element(output_.out, 0, row, head, d);
    }
  }
}

void MutantAttention::run(Index num_sequences, bool drop_last_split) {
  if (has(Bug::kWritesPaddingRows)) write_padding_rows();
  for (Index s = 0; s < num_sequences; ++s) {
    const Sequence seq = sequence(s);
    Index kv_head = -1;
    for (Index head = 0; head < spec_.num_q_heads; ++head) {
      if (kv_head_of(head) != kv_head) {
        kv_head = kv_head_of(head);
        loaded_.is_loaded.assign(at(seq.kv_len + 1), 0);
        loaded_.k.resize(at((seq.kv_len + 1) * spec_.head_dim));
        loaded_.v.resize(at((seq.kv_len + 1) * spec_.value_dim));
      }
      for (Index i = 0; i < seq.q_len; ++i) attend_row(seq, head, i, drop_last_split);
    }
  }
}

}  // namespace quire::conformance
