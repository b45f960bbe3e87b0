// SPDX-License-Identifier: Apache-2.0
// A random batch, split and joined, is the same batch; the parts hold every sequence once.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "property/random_batch.h"
#include "quire/batch_convert.h"
#include "quire/error.h"

namespace quire::testing {
namespace {

// A batch of one sequence of another, for comparison.
BatchView one_of(const BatchView& batch, std::int64_t s) {
  BatchView one;
  one.queries = {batch.queries.begins.subview(s, 1), batch.queries.ends.subview(s, 1)};
  one.kv.lens = batch.kv.lens.subview(s, 1);
  one.kv.blocks = batch.kv.blocks;
  const BlockTables& tables = batch.kv.blocks;
  if (tables.kind == BlockTables::Kind::kPadded) {
    one.kv.blocks.indices = tables.indices.subview(s * tables.row_stride, tables.row_stride);
  } else if (tables.kind == BlockTables::Kind::kIndexed) {
    one.kv.blocks.begins = tables.begins.subview(s, 2);
  } else {
    one.kv.blocks.rows = tables.rows.subview(s, 1);
  }
  one.tree_mask = batch.tree_mask;
  if (batch.tree_mask.present()) one.tree_mask.begins = batch.tree_mask.begins.subview(s, 1);
  return one;
}

void assert_part(const RandomBatch& batch, const BatchView& part,
                 const std::vector<std::int32_t>& sequences, std::vector<int>& owners) {
  RC_ASSERT(part.num_sequences() == static_cast<std::int64_t>(sequences.size()));
  if (!part.tree_mask.present()) {  // prepare refuses the rest of a mask without its begins
    RC_ASSERT(part.tree_mask.bits.empty());
    RC_ASSERT(part.tree_mask.depths.empty());
  }
  for (std::int64_t i = 0; i < part.num_sequences(); ++i) {
    const std::int32_t s = sequences[static_cast<std::size_t>(i)];
    ++owners[static_cast<std::size_t>(s)];
    assert_same(one_of(batch.view, s), batch.block_size, one_of(part, i), batch.block_size);
    assert_same_trees(one_of(batch.view, s), one_of(part, i));
    for (std::int32_t row = part.queries.begins[i]; row < part.queries.ends[i]; ++row) {
      if (!part.kv.slots.empty()) RC_ASSERT(part.kv.slots[row] == batch.view.kv.slots[row]);
    }
  }
}

RC_GTEST_PROP(BatchSplitProperty, JoinOfSplitIsTheBatch, ()) {
  RandomBatch batch;
  draw_batch({.gaps = true,
              .queries_beyond_keys = true,
              .released = true,
              .ragged = true,
              .trees = *rc::gen::arbitrary<bool>(),
              .slots = *rc::gen::element(SlotChoice::kNone, SlotChoice::kRandom)},
             batch);
  const std::int64_t decode_max_q_len = *rc::gen::inRange(0, 7);
  BatchSplit split;
  split_batch(batch.view, decode_max_q_len, NewKvRows::kQueries, split);

  std::vector<int> owners(batch.lens.size(), 0);
  assert_part(batch, split.prefill, split.prefill_sequences, owners);
  assert_part(batch, split.decode, split.decode_sequences, owners);
  for (const int count : owners) RC_ASSERT(count == 1);
  for (std::int64_t s = 0; s < split.decode.num_sequences(); ++s) {
    RC_ASSERT(split.decode.queries.ends[s] - split.decode.queries.begins[s] <= decode_max_q_len);
  }
  for (std::int64_t s = 0; s < split.prefill.num_sequences(); ++s) {
    RC_ASSERT(split.prefill.queries.ends[s] - split.prefill.queries.begins[s] > decode_max_q_len);
  }

  BatchStorage storage;
  const BatchView joined = join_batches(split.prefill, split.decode, storage);
  assert_same(batch.view, batch.block_size, joined, batch.block_size);
  assert_same_trees(batch.view, joined);
  // Sequences without rows keep their place too.
  for (std::int64_t s = 0; s < joined.num_sequences(); ++s) {
    RC_ASSERT(joined.queries.begins[s] == batch.view.queries.begins[s]);
  }
}

// New rows are stored once, by the whole batch or by both parts one after the other.
RC_GTEST_PROP(BatchSplitProperty, PartsStoreEveryRowOnce, ()) {
  RandomBatch batch;
  draw_batch({.gaps = true, .queries_beyond_keys = true}, batch);
  BatchSplit split;
  split_batch(batch.view, *rc::gen::inRange(0, 7),
              *rc::gen::element(NewKvRows::kQueries, NewKvRows::kSeparate), split);
  for (std::int64_t i = 0; i < batch.view.kv.slots.size; ++i) {
    const std::int64_t prefill = split.prefill.kv.slots[i];
    const std::int64_t decode = split.decode.kv.slots.empty() ? -1 : split.decode.kv.slots[i];
    RC_ASSERT(prefill == -1 || decode == -1);
    RC_ASSERT(std::max(prefill, decode) == batch.view.kv.slots[i]);
  }
}

// A split may be split again, and its storage reused for another batch.
RC_GTEST_PROP(BatchSplitProperty, StorageIsReused, ()) {
  BatchSplit split;
  BatchStorage storage;
  for (int step = 0; step < 3; ++step) {
    RandomBatch batch;
    draw_batch({.gaps = true, .ragged = true, .trees = true}, batch);
    split_batch(batch.view, 2, NewKvRows::kQueries, split);
    BatchSplit second;
    split_batch(split.prefill, 4, NewKvRows::kQueries, second);
    BatchStorage inner;
    const BatchView prefill = join_batches(second.prefill, second.decode, inner);
    const BatchView joined = join_batches(prefill, split.decode, storage);
    assert_same(batch.view, batch.block_size, joined, batch.block_size);
    assert_same_trees(batch.view, joined);
  }
}

// One entry of a batch damaged: refused with an Error, or split and joined without a stray access
// (run with AddressSanitizer).
RC_GTEST_PROP(BatchSplitProperty, DamagedBatches, ()) {
  RandomBatch batch;
  draw_batch({.gaps = true, .ragged = true, .trees = true}, batch);
  const auto spoil = [](auto& array) {
    using T = std::decay_t<decltype(array[0])>;
    if (array.empty()) return;
    array[*rc::gen::inRange<std::size_t>(0, array.size())] = *rc::gen::element(
        std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T{-2}, T{1}, T{30});
  };
  const int which = *rc::gen::inRange(0, 6);
  if (which == 0) spoil(batch.begins);
  if (which == 1) spoil(batch.ends);
  if (which == 2) spoil(batch.lens);
  if (which == 3) spoil(batch.table_begins);
  if (which == 4) spoil(batch.tree_begins);
  if (which == 5) spoil(batch.rows);
  BatchSplit split;
  BatchStorage storage;
  try {
    split_batch(batch.view, 2, NewKvRows::kQueries, split);
    const BatchView joined = join_batches(split.prefill, split.decode, storage);
    RC_ASSERT(joined.num_sequences() == batch.view.num_sequences());
    RC_TAG("accepted");
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::kInvalidArgument);
    RC_TAG("refused");
  }
}

}  // namespace
}  // namespace quire::testing
