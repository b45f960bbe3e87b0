// SPDX-License-Identifier: Apache-2.0
// Attention for everything: any dims, formats, strides and layouts, in f32 without matrix units.
// Scores are f64: a large one rounded to f32 would be off by more than f32 results may be.
// One team computes one row at a time: scores of 32 keys, one a lane, then their values, one dim a
// lane. For f32 queries or keys, mixed 16-bit formats, odd dims and unaligned tensors; the other
// kernels are for speed.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/row_states.h"
#include "layout/kv_offset.h"

namespace quire::gpu {

inline constexpr int kRowThreads = 128;
inline constexpr int kMaxRowDims = 1024;  // of K or V

struct RowShared {
  static constexpr int kMergeStates = 8;
  alignas(16) unsigned char states[kRowThreads / kTeam][kMergeStates * kMergeStateBytes];
  int slot;
  int flag;
};

// The sequence of an item as the masks see it.
QUIRE_DEVICE SequenceView item_sequence(const AttendArgs& args, const Item& item) {
  if (args.batch.tree_mask.begins.size != 0) return sequence_view(args.batch, item.sequence);
  SequenceView sequence;
  sequence.q_len = item.q_len;
  sequence.kv_len = item.kv_len;
  return sequence;
}

// Block and token of key j, or the row of a ragged source.
struct KeyPlace {
  std::int64_t block;
  int token;
};
QUIRE_DEVICE KeyPlace key_place(const AttendArgs& args, std::int64_t table_begin, int key) {
  if (args.batch.kv.blocks.kind == BlockTables::Kind::kRagged) return {table_begin + key, 0};
  const int block_size = args.cache.format.block_size;
  const int index = args.block_shift >= 0
                        ? key >> args.block_shift
                        : static_cast<unsigned>(key) / static_cast<unsigned>(block_size);
  return {args.batch.kv.blocks.indices.data[table_begin + index], key - index * block_size};
}

QUIRE_DEVICE float scale_at(const KvScales& scales, const KeyPlace& place, int head) {
  if (scales.data == nullptr) return 1.0F;
  return scales.data[scale_offset(scales, place.block, head, place.token)];
}

// The score in powers of two, from the product of query and key; -inf if hidden by the bias. Real
// is double where the result must be as exact as f32 inputs are.
template <class Real>
QUIRE_DEVICE Real finish_score(const AttendArgs& args, const SequenceView& sequence,
                               const Item& item, std::int64_t head, int token, int key,
                               Real product) {
  Real x = args.params.scale * product;
  if (args.params.softcap > 0.0F) {
    x = args.params.softcap * tanh_exact(x / args.params.softcap);
  }
  if (args.params.alibi_slopes.size != 0) {
    const std::int64_t distance = query_position(sequence, token) - key_position(sequence, key);
    x -= args.params.alibi_slopes.data[head] *
         static_cast<Real>(distance < 0 ? -distance : distance);
  }
  const TensorView& bias = args.params.bias;
  if (bias.rank != 0) {
    const float b = load_float(bias.dtype, bias.data,
                               item.sequence * bias.strides[0] + head * bias.strides[1] +
                                   token * bias.strides[2] + key * bias.strides[3]);
    if (b == negative_infinity()) return b;  // whatever the key holds
    x += b;
  }
  return x * static_cast<Real>(kLog2EExact);
}

QUIRE_DEVICE bool is_row_visible(const AttendArgs& args, const SequenceView& sequence, int token,
                                 int key) {
  return is_visible(args.mask, args.alignment, sequence, token, key);
}

// q.k over all dims: products of what is stored, exact.
QUIRE_DEVICE double dot_row(const AttendArgs& args, const OutputRow& row, const KeyPlace& place,
                            int kv_head) {
  const KvCacheView& cache = args.cache;
  const std::int64_t q_base = row.token * args.q.strides[0] + row.head * args.q.strides[1];
  double sum = 0.0;
  for (int d = 0; d < cache.head_dim; ++d) {
    const std::int64_t at =
        element_offset(cache, KvTensor::kK, place.block, kv_head, place.token, d);
    const double q = load_float(args.q.dtype, args.q.data, q_base + d * args.q.strides[2]);
    sum += q * static_cast<double>(load_float(cache.format.dtype, cache.k, at));
  }
  return sum;
}

// One team, one row: all keys of the item.
QUIRE_DEVICE void attend_row(const AttendArgs& args, const Item& item, int row) {
  const SequenceView sequence = item_sequence(args, item);
  const OutputRow to = output_row(args, item, row);
  const int token = divide(item.first_row + row, args.by_group);
  const KvCacheView& cache = args.cache;
  const bool v_in_k = cache.format.v_in_k;
  const void* v_data = v_in_k ? cache.k : cache.v;
  const KvScales& v_scales = v_in_k ? cache.k_scales : cache.v_scales;
  constexpr int kDimsPerLane = kMaxRowDims / kTeam;
  float values[kDimsPerLane];
  for (float& value : values) value = 0.0F;
  float maximum = negative_infinity();
  float sum = 0.0F;
  for (int first = item.key_begin; first < item.key_end; first += kTeam) {
    const int key = first + lane();
    const bool visible = key < item.key_end && is_row_visible(args, sequence, token, key);
    KeyPlace place{0, 0};
    double score = static_cast<double>(negative_infinity());
    float v_scale = 1.0F;
    if (visible) {
      place = key_place(args, item.table_begin, key);
      const double k_scale = scale_at(cache.k_scales, place, item.kv_head);
      score = finish_score<double>(args, sequence, item, to.head, token, key,
                                   dot_row(args, to, place, item.kv_head) * k_scale);
      v_scale = scale_at(v_scales, place, item.kv_head);
    }
    // The maximum is rounded: any base near it serves, if all use the same.
    const float larger = max_of(maximum, team_max(static_cast<float>(score)));
    const float base = larger == negative_infinity() ? 0.0F : larger;
    const float shrink = exp2_exact(maximum - base);
    const bool counts = score != static_cast<double>(negative_infinity());
    const float weight =
        counts ? exp2_exact(static_cast<float>(score - static_cast<double>(base))) : 0.0F;
    sum = sum * shrink + team_sum(weight);
    maximum = larger;
    for (float& value : values) value *= shrink;
    for (int other = 0; other < kTeam; ++other) {
      const std::int64_t block = shuffle64(place.block, other);
      const int slot = shuffle(place.token, other);
      const float factor = shuffle(weight * v_scale, other);
      if (shuffle(counts ? 1 : 0, other) == 0) continue;  // not even 0 * v: v may be NaN
      for (int i = 0, d = lane(); d < cache.value_dim; ++i, d += kTeam) {
        const std::int64_t at = element_offset(cache, KvTensor::kV, block, item.kv_head, slot, d);
        values[i] += factor * load_float(cache.format.dtype, v_data, at);
      }
    }
  }
  if (item.num_splits > 1) {
    const std::int64_t at = item.partial_row + row;
    for (int i = 0, d = lane(); d < cache.value_dim; ++i, d += kTeam) {
      args.partial_values[at * args.value_stride + d] = values[i];
    }
    if (lane() == 0) {
      args.partial_sums[2 * at] = maximum;
      args.partial_sums[2 * at + 1] = sum;
    }
    return;
  }
  const float factor = finish_row(args, to, maximum, sum, lane() == 0);
  for (int i = 0, d = lane(); d < cache.value_dim; ++i, d += kTeam) {
    store_value(args.output.out, to, d, values[i] * factor);
  }
}

QUIRE_DEVICE void attend_rows(const AttendArgs& args) {
  auto& shared = *reinterpret_cast<RowShared*>(shared_memory());
  const int num_items = *args.fault == kNoFault ? *args.num_items : 0;
  for (int index = first_item_taken(args, &shared.slot); index < num_items;) {
    const Item item = args.items[index];
    for (int row = team(); row < item.num_rows; row += kRowThreads / kTeam) {
      attend_row(args, item, row);
    }
    sync_block();
    const int first = item.num_splits > 1 ? add_splits(args, item, 1, false) : -1;
    if (thread_index() == 0) {
      shared.flag = first;
      shared.slot = take_item(args);
    }
    sync_block();
    index = shared.slot;
    if (shared.flag >= 0) {
      merge_rows(args, item, shared.flag, {shared.states[team()], RowShared::kMergeStates});
    }
  }
  finish_items(args);
}

}  // namespace quire::gpu
