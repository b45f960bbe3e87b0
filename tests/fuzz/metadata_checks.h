// SPDX-License-Identifier: Apache-2.0
// What must hold of every batch that validation accepted: visible keys lie where the facts say,
// converters keep them, plans stay within their bounds. A broken expectation traps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/mask.h"
#include "attention/validate.h"
#include "layout/kv_offset.h"
#include "plan/plan.h"
#include "quire/backend.h"
#include "quire/batch_convert.h"
#include "quire/error.h"

namespace quire::fuzz {

inline void expect(bool condition) {
  if (!condition) __builtin_trap();
}

inline BatchFacts validate_exactly(const AttentionSpec& spec, const BatchBounds& bounds,
                                   const BatchView& batch) {
  const auto scratch = std::make_unique<std::int64_t[]>(
      static_cast<std::size_t>(validation_scratch_bytes(bounds)) / sizeof(std::int64_t));
  return validate_batch(spec, bounds, batch, Device{}, scratch.get());
}

// Calls f(s, j) for keys that some row of s can see: all of a short sequence, the first and the
// last few of a long one.
template <class F>
void for_each_visible_key(const AttentionSpec& spec, const BatchView& batch, F&& f) {
  constexpr std::int64_t kEdge = 64;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const SequenceView sequence = sequence_view(batch, s);
    const KeyRange keys = keys_seen(spec.mask, spec.alignment, sequence, 0, sequence.q_len);
    if (keys.empty()) continue;
    expect(keys.begin >= 0 && keys.end <= sequence.kv_len);
    // What no query of a tree sees may lie nowhere.
    const bool has_tree = sequence.tree_bits != nullptr;
    const std::int64_t first_old = has_tree ? first_old_key_seen(spec.mask, sequence) : 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (!has_tree || is_seen_in_tree(spec.mask, sequence, first_old, j)) f(s, j);
      if (j == keys.begin + kEdge) j = std::max(j, keys.end - kEdge);
    }
  }
}

// The ranges of single rows, and the definition, within the range of all rows.
inline void check_rows(const AttentionSpec& spec, const BatchView& batch) {
  constexpr std::int64_t kMaxPairs = 4096;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const SequenceView sequence = sequence_view(batch, s);
    const KeyRange all = keys_seen(spec.mask, spec.alignment, sequence, 0, sequence.q_len);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const KeyRange keys = keys_seen(spec.mask, spec.alignment, sequence, i, i + 1);
      expect(keys.empty() || (keys.begin >= all.begin && keys.end <= all.end));
      if (sequence.q_len * sequence.kv_len > kMaxPairs) continue;
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        if (is_visible(spec.mask, spec.alignment, sequence, i, j)) {
          expect(j >= keys.begin && j < keys.end);
        }
      }
    }
  }
}

inline void check_facts(const AttentionSpec& spec, const BatchView& batch,
                        const BatchFacts& facts) {
  const bool ragged = batch.kv.blocks.kind == BlockTables::Kind::kRagged;
  const std::int64_t num_slots =
      ragged ? facts.largest_row.value : (facts.largest_block.value + 1) * spec.kv.block_size;
  for_each_visible_key(spec, batch, [&](std::int64_t s, std::int64_t j) {
    const std::int64_t slot = key_slot(batch.kv.blocks, spec.kv.block_size, s, j);
    expect(slot >= 0 && slot < num_slots);
  });
  std::vector<std::int64_t> slots;
  for (const std::int64_t slot : batch.kv.slots) {
    expect(slot >= -1 && slot <= facts.largest_slot.value);
    if (slot >= 0) slots.push_back(slot);
  }
  std::sort(slots.begin(), slots.end());
  expect(std::adjacent_find(slots.begin(), slots.end()) == slots.end());
}

// A converted batch reads and writes what the first one did.
inline void check_same(const AttentionSpec& spec, const BatchView& before, const BatchView& after,
                       bool same_slots = true) {
  expect(after.num_sequences() == before.num_sequences());
  for (std::int64_t s = 0; s < before.num_sequences(); ++s) {
    expect(after.kv.lens[s] == before.kv.lens[s]);
    expect(after.queries.ends[s] - after.queries.begins[s] ==
           before.queries.ends[s] - before.queries.begins[s]);
  }
  for_each_visible_key(spec, before, [&](std::int64_t s, std::int64_t j) {
    expect(key_slot(after.kv.blocks, spec.kv.block_size, s, j) ==
           key_slot(before.kv.blocks, spec.kv.block_size, s, j));
  });
  if (!same_slots) return;
  expect(after.kv.slots.size >= before.kv.slots.size);
  for (std::int64_t i = 0; i < before.kv.slots.size; ++i) {
    expect(after.kv.slots[i] == before.kv.slots[i]);
  }
}

// What cannot be expressed is an Error; what can, comes back.
template <class RoundTrip>
void try_convert(RoundTrip&& round_trip) {
  try {
    round_trip();
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kInvalidArgument);
  }
}

inline void check_converters(const AttentionSpec& spec, const BatchView& batch) {
  const int block_size = spec.kv.block_size;
  BatchStorage to;
  BatchStorage from;
  try_convert(
      [&] { check_same(spec, batch, from_vllm(to_vllm(batch, block_size, to), block_size)); });
  try_convert([&] {
    const FlashInferMetadata metadata = to_flashinfer(batch, block_size, to);
    const bool stores = !batch.kv.slots.empty();
    check_same(spec, batch,
               from_flashinfer(metadata, block_size,
                               stores ? NewKvRows::kQueries : NewKvRows::kSeparate, from),
               false);
  });
  try_convert([&] {
    const OpenVinoMetadata metadata = to_openvino(batch, block_size, to);
    check_same(spec, batch, from_openvino(metadata, block_size, from), false);
  });
  try_convert([&] {
    const TokenSlotMetadata metadata = to_token_slots(batch, block_size, to);
    expect(aligned_block_size(metadata, 64, from) >= 1);
    check_same(spec, batch, from_token_slots(metadata, block_size, from));
  });
  try_convert([&] {
    const SglangMetadata metadata = to_sglang(batch, block_size, to);
    expect(aligned_block_size(metadata, 64, from) >= 1);
    check_same(spec, batch, from_sglang(metadata, block_size, from));
  });
}

inline void check_split(const AttentionSpec& spec, const BatchView& batch) {
  for (const NewKvRows new_kv : {NewKvRows::kQueries, NewKvRows::kSeparate}) {
    try_convert([&] {
      BatchSplit split;
      split_batch(batch, 1, new_kv, split);
      expect(split.prefill.num_sequences() + split.decode.num_sequences() == batch.num_sequences());
      BatchStorage storage;
      check_same(spec, batch, join_batches(split.prefill, split.decode, storage));
    });
  }
}

inline void check_plan(const AttentionSpec& spec, const BatchBounds& bounds,
                       const BatchView& batch) {
  constexpr std::int64_t kMaxWalked = 4096;
  PlanParams params;
  params.split = {.min_keys = 64,  // as many splits as there can be
                  .unsplit_keys = 64,
                  .merge_keys = 1,
                  .max_partial_percent = 10000,
                  .max_items = 4096,
                  .max_partial_rows = 1 << 20};
  const PlanSpec plan_spec = make_plan_spec(spec, params);
  const std::int64_t num_sequences = batch.num_sequences();
  const auto memory =
      std::make_unique<std::int64_t[]>(static_cast<std::size_t>(plan_bytes(num_sequences)) / 8);
  BatchPlan plan = view_plan(memory.get(), num_sequences);
  plan_batch(plan_spec, batch, plan);
  const PlanOffsets& total = plan.offsets[num_sequences];
  const PlanBounds most = plan_bounds(plan_spec, bounds);
  expect(total.items <= most.items && total.merges <= most.merges);
  expect(total.partial_rows <= most.partial_rows);
  for (std::int64_t i = 0; i < std::min(total.items, kMaxWalked); ++i) {
    const WorkItem item = item_at(plan_spec, plan, i);
    const SequenceView sequence = sequence_view(batch, item.sequence);
    expect(item.kv_heads.begin >= 0 && item.kv_heads.end <= spec.num_kv_heads);
    expect(item.rows.begin >= 0 && item.rows.begin < item.rows.end);
    expect(item.rows.end <= sequence.q_len * spec.head_group());
    expect(item.keys.empty() || (item.keys.begin >= 0 && item.keys.end <= sequence.kv_len));
    expect(item.num_splits == 1 || (!item.keys.empty() && item.merge < total.merges));
  }
  for (std::int64_t i = 0; i < std::min(total.merges, kMaxWalked); ++i) {
    const Merge merge = merge_at(plan_spec, plan, i);
    const std::int64_t last =
        merge.partials.at(merge.num_splits - 1, spec.num_kv_heads - 1, merge.rows.end - 1);
    expect(merge.num_splits > 1 && last >= 0 && last < total.partial_rows);
  }
}

}  // namespace quire::fuzz
