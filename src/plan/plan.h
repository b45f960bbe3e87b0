// SPDX-License-Identifier: Apache-2.0
// From the lengths of a ragged batch to work items and merges. Host and device; no exceptions, no
// allocation; integers only, so that both give the same plan.
//
// The rows of a sequence for one kv head are packed: row = token * group + head in group. A row
// tile holds params.row_tile of them, a work item one row tile of some kv heads over some of its
// keys (a split). Only a SequencePlan per sequence and prefix sums are stored; items and merges are
// derived by index. Everything but the prefix sums follows from the sequence alone: batch
// invariance.
//
// Every visible (query, key) pair lies in exactly one item. Items of a sequence with more than one
// split have keys; of a sequence with one split an item may have none: its rows see nothing, and it
// still writes 0 and -inf.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "base/host_device.h"
#include "plan/plan_spec.h"
#include "plan/split.h"
#include "quire/batch.h"

namespace quire {

// Counts of one sequence, or of all sequences before one.
struct PlanOffsets {
  std::int64_t items = 0;
  std::int64_t merges = 0;
  std::int64_t partial_rows = 0;  // rows of partial results: value_dim f32, maximum and sum
  QUIRE_HOST_DEVICE friend constexpr PlanOffsets operator+(const PlanOffsets& a,
                                                           const PlanOffsets& b) {
    return {a.items + b.items, a.merges + b.merges, a.partial_rows + b.partial_rows};
  }
};

// The plan of a batch in memory of the caller.
struct BatchPlan {
  std::int64_t num_sequences = 0;
  SequencePlan* sequences = nullptr;  // [num_sequences]
  PlanOffsets* offsets = nullptr;     // [num_sequences + 1] of all sequences before; last: totals
};

// Where the partial rows of one sequence lie: [num_splits, num_kv_heads, q_len * group].
struct PartialRows {
  std::int64_t begin = 0;
  std::int64_t head_stride = 0;
  std::int64_t split_stride = 0;
  QUIRE_HOST_DEVICE constexpr std::int64_t at(std::int64_t split, std::int64_t kv_head,
                                              std::int64_t row) const {
    return begin + split * split_stride + kv_head * head_stride + row;
  }
};

struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  QUIRE_HOST_DEVICE constexpr std::int64_t size() const { return end - begin; }
};

struct WorkItem {
  std::int64_t sequence = 0;
  IndexRange kv_heads;
  IndexRange rows;  // packed rows; token_range gives their tokens
  KeyRange keys;    // borders between splits are multiples of key_tile
  std::int64_t split = 0;
  std::int64_t num_splits = 1;
  std::int64_t merge = 0;  // the merge that it feeds, if num_splits > 1
  PartialRows partials;    // where it stores its rows, if num_splits > 1
};

// Merges the splits 0, 1, .. num_splits - 1, in this order.
struct Merge {
  std::int64_t sequence = 0;
  IndexRange kv_heads;
  IndexRange rows;
  std::int64_t num_splits = 0;
  PartialRows partials;
};

// What a sequence adds to the prefix sums.
QUIRE_HOST_DEVICE constexpr PlanOffsets sequence_counts(const PlanSpec& spec,
                                                        const SequencePlan& plan) {
  const std::int64_t units = plan.num_units();
  if (plan.num_splits == 1) return {units, 0, 0};
  return {units * plan.num_splits, units,
          plan.q_len * spec.group * spec.num_kv_heads * plan.num_splits};
}

// Plans every sequence, in order. The arrays of `batch` and of `plan` must be readable where it
// runs; a device may as well call plan_sequence in parallel and scan sequence_counts.
// REQUIRES: plan has room for the sequences of the batch.
QUIRE_HOST_DEVICE constexpr void plan_batch(const PlanSpec& spec, const BatchView& batch,
                                            BatchPlan& plan) {
  PlanOffsets sum;
  plan.num_sequences = batch.queries.begins.size;
  for (std::int64_t s = 0; s < plan.num_sequences; ++s) {
    plan.sequences[s] = plan_sequence(spec, sequence_view(batch, s));
    plan.offsets[s] = sum;
    sum = sum + sequence_counts(spec, plan.sequences[s]);
  }
  plan.offsets[plan.num_sequences] = sum;
}

// The kv heads and rows of a unit. Units run from the last row tile to the first, so that under a
// causal mask the longest come first, and through all tiles of one head range before the next, so
// that neighbours read the same keys.
QUIRE_HOST_DEVICE constexpr Merge unit_at(const PlanSpec& spec, const BatchPlan& batch_plan,
                                          std::int64_t sequence, std::int64_t unit) {
  const SequencePlan& plan = batch_plan.sequences[sequence];
  const std::int64_t num_rows = plan.q_len * spec.group;
  const std::int64_t range = quotient(unit, plan.num_row_tiles);
  const std::int64_t tile = plan.num_row_tiles - 1 - (unit - range * plan.num_row_tiles);
  const std::int64_t head = range * plan.heads_per_item;
  const std::int64_t row = tile * spec.params.row_tile;
  Merge merge;
  merge.sequence = sequence;
  merge.kv_heads = {head, smaller(head + plan.heads_per_item, spec.num_kv_heads)};
  merge.rows = {row, smaller(row + spec.params.row_tile, num_rows)};
  merge.num_splits = plan.num_splits;
  merge.partials = {batch_plan.offsets[sequence].partial_rows, num_rows,
                    num_rows * spec.num_kv_heads};
  return merge;
}

// The sequence that holds item or merge `index`. REQUIRES: 0 <= index < the total.
QUIRE_HOST_DEVICE constexpr std::int64_t find_sequence(const BatchPlan& plan,
                                                       std::int64_t PlanOffsets::*count,
                                                       std::int64_t index) {
  std::int64_t low = 0;
  std::int64_t high = plan.num_sequences - 1;  // offsets[low] <= index < offsets[high + 1]
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (plan.offsets[middle + 1].*count <= index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Item `index` of a sequence. Consecutive items of one unit are consecutive splits.
QUIRE_HOST_DEVICE constexpr WorkItem item_of_sequence(const PlanSpec& spec, const BatchPlan& plan,
                                                      std::int64_t sequence, std::int64_t index) {
  const std::int64_t unit = quotient(index, plan.sequences[sequence].num_splits);
  const Merge merge = unit_at(spec, plan, sequence, unit);
  WorkItem item;
  item.sequence = sequence;
  item.kv_heads = merge.kv_heads;
  item.rows = merge.rows;
  item.split = index - unit * merge.num_splits;
  item.num_splits = merge.num_splits;
  item.keys = split_keys(spec, tile_keys(spec, plan.sequences[sequence], merge.rows.begin),
                         item.split, item.num_splits);
  item.merge = plan.offsets[sequence].merges + unit;
  item.partials = merge.partials;
  return item;
}

// REQUIRES: 0 <= index < offsets[num_sequences].items.
QUIRE_HOST_DEVICE constexpr WorkItem item_at(const PlanSpec& spec, const BatchPlan& plan,
                                             std::int64_t index) {
  const std::int64_t sequence = find_sequence(plan, &PlanOffsets::items, index);
  return item_of_sequence(spec, plan, sequence, index - plan.offsets[sequence].items);
}

// REQUIRES: 0 <= index < offsets[num_sequences].merges.
QUIRE_HOST_DEVICE constexpr Merge merge_at(const PlanSpec& spec, const BatchPlan& plan,
                                           std::int64_t index) {
  const std::int64_t sequence = find_sequence(plan, &PlanOffsets::merges, index);
  return unit_at(spec, plan, sequence, index - plan.offsets[sequence].merges);
}

// The tokens that packed rows belong to.
QUIRE_HOST_DEVICE constexpr IndexRange token_range(const PlanSpec& spec, const IndexRange& rows) {
  return {quotient(rows.begin, spec.group), ceil_div(rows.end, spec.group)};
}

// The time of an item relative to others: reading its keys, and arithmetic for each of its rows.
QUIRE_HOST_DEVICE constexpr std::int64_t item_cost(const PlanSpec& spec, const WorkItem& item) {
  return item.kv_heads.size() * item.keys.size() *
         (spec.params.rows_per_key_read + item.rows.size());
}

// Bytes of a plan of up to max_sequences, and the plan in them. REQUIRES: 8-byte alignment.
QUIRE_HOST_DEVICE constexpr std::int64_t plan_bytes(std::int64_t max_sequences) {
  return max_sequences * static_cast<std::int64_t>(sizeof(SequencePlan)) +
         (max_sequences + 1) * static_cast<std::int64_t>(sizeof(PlanOffsets));
}
QUIRE_HOST_DEVICE inline BatchPlan view_plan(void* memory, std::int64_t max_sequences) {
  auto* sequences = static_cast<SequencePlan*>(memory);
  return {0, sequences, reinterpret_cast<PlanOffsets*>(sequences + max_sequences)};
}

}  // namespace quire
