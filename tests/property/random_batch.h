// SPDX-License-Identifier: Apache-2.0
// Random batches for property tests, and equality of what attention sees of two batches.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "attention/mask.h"
#include "layout/kv_offset.h"
#include "quire/batch.h"

namespace quire::testing {

enum class SlotChoice { kNone, kDerived, kRandom };

struct RandomBatchOptions {
  bool gaps = false;                 // rows of no sequence
  bool queries_beyond_keys = false;  // q_len > kv_len
  bool released = false;             // negative block ids
  bool ragged = false;               // sometimes no blocks at all
  bool trees = false;                // tree masks and depths
  SlotChoice slots = SlotChoice::kRandom;
};

// Owns its arrays. Not copied: views point into it.
struct RandomBatch {
  int block_size = 1;
  std::vector<std::int32_t> begins, ends, lens, table, table_begins, depths;
  std::vector<std::int64_t> slots, rows, tree_begins;
  std::vector<std::uint8_t> bits;
  BatchView view;
};

inline std::int64_t num_rows_of(const BatchView& batch) {
  return batch.num_sequences() == 0 ? 0 : batch.queries.ends[batch.num_sequences() - 1];
}

template <class T>
std::vector<T> draw_array(std::int64_t size, std::int64_t low, std::int64_t high) {
  return *rc::gen::container<std::vector<T>>(
      static_cast<std::size_t>(size), rc::gen::cast<T>(rc::gen::inRange<std::int64_t>(low, high)));
}

inline void draw_tables(const RandomBatchOptions& options, RandomBatch& batch) {
  const auto num_sequences = static_cast<std::int64_t>(batch.lens.size());
  const std::int64_t lowest = options.released ? -2 : 0;
  if (options.ragged && *rc::gen::inRange(0, 3) == 0) {
    batch.block_size = 1;
    batch.rows = draw_array<std::int64_t>(num_sequences, 0, 1000);
    batch.view.kv.blocks = BlockTables::ragged(batch.rows);
    return;
  }
  batch.block_size = *rc::gen::element(1, 2, 3, 4, 16);
  const bool padded = *rc::gen::arbitrary<bool>();
  std::int64_t longest = 0;
  std::int64_t total = padded ? 0 : *rc::gen::inRange(0, 3);  // indexed tables may begin anywhere
  batch.table_begins.push_back(static_cast<std::int32_t>(total));
  for (const std::int32_t kv_len : batch.lens) {
    const std::int64_t needed = (kv_len + batch.block_size - 1) / batch.block_size;
    const std::int64_t surplus = padded ? 0 : *rc::gen::inRange(0, 2);
    longest = std::max(longest, needed);
    total += needed + surplus;
    batch.table_begins.push_back(static_cast<std::int32_t>(total));
  }
  const std::int64_t stride = longest + *rc::gen::inRange(0, 2);
  batch.table = draw_array<std::int32_t>(padded ? num_sequences * stride : total, lowest, 500);
  batch.view.kv.blocks = padded ? BlockTables::padded(batch.table, stride)
                                : BlockTables::indexed(batch.table_begins, batch.table);
}

// Where the queries would be stored by their positions; -1 for rows of no sequence.
inline std::vector<std::int64_t> derived_slots(const BatchView& batch, int block_size) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_rows_of(batch)), -1);
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    for (std::int32_t row = batch.queries.begins[s]; row < batch.queries.ends[s]; ++row) {
      const std::int64_t key = batch.kv.lens[s] - (batch.queries.ends[s] - row);
      if (key >= 0) {
        slots[static_cast<std::size_t>(row)] = key_slot(batch.kv.blocks, block_size, s, key);
      }
    }
  }
  return slots;
}

inline void draw_trees(RandomBatch& batch) {
  const std::int64_t num_rows = num_rows_of(batch.view);
  for (std::size_t s = 0; s < batch.lens.size(); ++s) {
    const bool plain = *rc::gen::arbitrary<bool>();
    batch.tree_begins.push_back(plain ? -1 : static_cast<std::int64_t>(batch.bits.size()));
    if (!plain) {
      const auto bytes =
          draw_array<std::uint8_t>(tree_mask_bytes(batch.ends[s] - batch.begins[s]), 0, 256);
      batch.bits.insert(batch.bits.end(), bytes.begin(), bytes.end());
    }
  }
  if (*rc::gen::arbitrary<bool>()) batch.depths = draw_array<std::int32_t>(num_rows, 0, 5);
  batch.view.tree_mask = {batch.bits, batch.tree_begins, batch.depths};
}

// Only within a property.
inline void draw_batch(const RandomBatchOptions& options, RandomBatch& batch) {
  using Shape = std::tuple<int, int, int>;  // rows left out before, q_len, keys beyond or in all
  const auto shapes = *rc::gen::container<std::vector<Shape>>(rc::gen::tuple(
      rc::gen::inRange(0, options.gaps ? 3 : 1), rc::gen::inRange(0, 7), rc::gen::inRange(0, 21)));
  std::int32_t row = 0;
  for (const auto& [gap, q_len, keys] : shapes) {
    row += gap;
    batch.begins.push_back(row);
    batch.ends.push_back(row += q_len);
    batch.lens.push_back(options.queries_beyond_keys ? keys : q_len + keys);
  }
  batch.view.queries = {batch.begins, batch.ends};
  batch.view.kv.lens = batch.lens;
  draw_tables(options, batch);
  if (options.slots == SlotChoice::kDerived)
    batch.slots = derived_slots(batch.view, batch.block_size);
  if (options.slots == SlotChoice::kRandom) {
    batch.slots = draw_array<std::int64_t>(row + *rc::gen::inRange(0, 3), -1, 5000);
  }
  batch.view.kv.slots = batch.slots;
  if (options.trees) draw_trees(batch);
}

inline void assert_same_slots(const ArrayView<std::int64_t>& a, const ArrayView<std::int64_t>& b) {
  for (std::int64_t i = 0; i < std::max(a.size, b.size); ++i) {
    RC_ASSERT((i < a.size ? a[i] : -1) == (i < b.size ? b[i] : -1));
  }
}

// Ranges (of sequences with rows), lengths, keys and slots. Released keys are equal whatever their
// negative number.
inline void assert_same(const BatchView& a, int block_size_a, const BatchView& b,
                        int block_size_b) {
  RC_ASSERT(a.num_sequences() == b.num_sequences());
  for (std::int64_t s = 0; s < a.num_sequences(); ++s) {
    const std::int32_t q_len = a.queries.ends[s] - a.queries.begins[s];
    RC_ASSERT(q_len == b.queries.ends[s] - b.queries.begins[s]);
    if (q_len > 0) RC_ASSERT(a.queries.begins[s] == b.queries.begins[s]);
    RC_ASSERT(a.kv.lens[s] == b.kv.lens[s]);
    for (std::int64_t j = 0; j < a.kv.lens[s]; ++j) {
      const std::int64_t slot_a = key_slot(a.kv.blocks, block_size_a, s, j);
      const std::int64_t slot_b = key_slot(b.kv.blocks, block_size_b, s, j);
      if (slot_a >= 0 || slot_b >= 0) RC_ASSERT(slot_a == slot_b);
    }
  }
  assert_same_slots(a.kv.slots, b.kv.slots);
}

// Bits and depths, sequence by sequence.
inline void assert_same_trees(const BatchView& a, const BatchView& b) {
  for (std::int64_t s = 0; s < a.num_sequences(); ++s) {
    const std::int64_t begin_a = a.tree_mask.present() ? a.tree_mask.begins[s] : -1;
    const std::int64_t begin_b = b.tree_mask.present() ? b.tree_mask.begins[s] : -1;
    RC_ASSERT((begin_a < 0) == (begin_b < 0));
    const std::int64_t bytes = tree_mask_bytes(a.queries.ends[s] - a.queries.begins[s]);
    for (std::int64_t i = 0; begin_a >= 0 && i < bytes; ++i) {
      RC_ASSERT(a.tree_mask.bits[begin_a + i] == b.tree_mask.bits[begin_b + i]);
    }
    for (std::int32_t row = a.queries.begins[s]; row < a.queries.ends[s]; ++row) {
      const std::int32_t implied = row - a.queries.begins[s];
      RC_ASSERT((a.tree_mask.depths.empty() ? implied : a.tree_mask.depths[row]) ==
                (b.tree_mask.depths.empty() ? implied : b.tree_mask.depths[row]));
    }
  }
}

}  // namespace quire::testing
