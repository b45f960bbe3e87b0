// SPDX-License-Identifier: Apache-2.0
// Random batches survive a trip through the metadata of every client that can express them, and no
// metadata, however damaged, is read out of range (run with AddressSanitizer to see the latter).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "property/random_batch.h"
#include "quire/batch_convert.h"
#include "quire/error.h"

namespace quire::testing {
namespace {

RC_GTEST_PROP(BatchConvertProperty, Vllm, ()) {
  RandomBatch batch;
  draw_batch({.queries_beyond_keys = true, .released = true}, batch);
  BatchStorage storage;
  const VllmMetadata metadata = to_vllm(batch.view, batch.block_size, storage);
  assert_same(batch.view, batch.block_size, from_vllm(metadata, batch.block_size),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, FlashInfer, ()) {
  RandomBatch batch;
  draw_batch({.queries_beyond_keys = true, .slots = SlotChoice::kDerived}, batch);
  BatchStorage there;
  BatchStorage back;
  const FlashInferMetadata metadata = to_flashinfer(batch.view, batch.block_size, there);
  assert_same(batch.view, batch.block_size,
              from_flashinfer(metadata, batch.block_size, NewKvRows::kQueries, back),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, FlashInferThatStoresNothing, ()) {
  RandomBatch batch;
  draw_batch({.queries_beyond_keys = true, .released = true, .slots = SlotChoice::kNone}, batch);
  BatchStorage there;
  BatchStorage back;
  const FlashInferMetadata metadata = to_flashinfer(batch.view, batch.block_size, there);
  assert_same(batch.view, batch.block_size,
              from_flashinfer(metadata, batch.block_size, NewKvRows::kSeparate, back),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, OpenVino, ()) {
  RandomBatch batch;
  draw_batch({.slots = SlotChoice::kDerived}, batch);
  BatchStorage there;
  BatchStorage back;
  const OpenVinoMetadata metadata = to_openvino(batch.view, batch.block_size, there);
  assert_same(batch.view, batch.block_size, from_openvino(metadata, batch.block_size, back),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, TokenSlotsFineAndCoarse, ()) {
  RandomBatch batch;
  draw_batch({.queries_beyond_keys = true, .released = true, .ragged = true}, batch);
  BatchStorage there;
  BatchStorage back;
  const TokenSlotMetadata metadata = to_token_slots(batch.view, batch.block_size, there);
  assert_same(batch.view, batch.block_size, from_token_slots(metadata, 1, back), 1);
  assert_same(batch.view, batch.block_size, from_token_slots(metadata, batch.block_size, back),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, Sglang, ()) {
  RandomBatch batch;
  draw_batch({.queries_beyond_keys = true, .released = true, .ragged = true}, batch);
  BatchStorage there;
  BatchStorage back;
  const SglangMetadata metadata = to_sglang(batch.view, batch.block_size, there);
  assert_same(batch.view, batch.block_size, from_sglang(metadata, 1, back), 1);
  assert_same(batch.view, batch.block_size, from_sglang(metadata, batch.block_size, back),
              batch.block_size);
}

RC_GTEST_PROP(BatchConvertProperty, VllmToFlashInferToOpenVinoToVllm, ()) {
  RandomBatch batch;
  draw_batch({.slots = SlotChoice::kDerived}, batch);
  const int block_size = batch.block_size;
  BatchStorage s1, s2, s3, s4, s5, s6;
  const BatchView vllm = from_vllm(to_vllm(batch.view, block_size, s1), block_size);
  const BatchView flashinfer =
      from_flashinfer(to_flashinfer(vllm, block_size, s2), block_size, NewKvRows::kQueries, s3);
  const BatchView openvino = from_openvino(to_openvino(flashinfer, block_size, s4), block_size, s5);
  const BatchView end = from_vllm(to_vllm(openvino, block_size, s6), block_size);
  assert_same(batch.view, block_size, end, block_size);
}

bool is_accepted(const TokenSlotMetadata& metadata, int block_size) {
  BatchStorage storage;
  try {
    from_token_slots(metadata, block_size, storage);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The definition, key by key.
bool is_aligned(const TokenSlotMetadata& metadata, int block_size) {
  for (std::int64_t s = 0; s + 1 < metadata.kv_begins.size; ++s) {
    const std::int64_t* slots = metadata.read_slots.data + metadata.kv_begins[s];
    for (std::int64_t j = 0; j < metadata.kv_begins[s + 1] - metadata.kv_begins[s]; ++j) {
      const std::int64_t first = slots[j - j % block_size];
      if ((slots[j] < 0) != (first < 0)) return false;
      if (slots[j] < 0) continue;
      if (slots[j] % block_size != j % block_size) return false;
      if (slots[j] / block_size != first / block_size) return false;
    }
  }
  return true;
}

// Block sizes are accepted where the definition holds, and the largest of them is found.
RC_GTEST_PROP(BatchConvertProperty, AlignedBlockSizeIsTheLargestAccepted, ()) {
  RandomBatch batch;
  draw_batch({.released = true}, batch);
  BatchStorage there;
  BatchStorage scratch;
  TokenSlotMetadata metadata = to_token_slots(batch.view, batch.block_size, there);
  if (!metadata.read_slots.empty() && *rc::gen::inRange(0, 3) == 0) {
    // One key elsewhere.
    there.slots[*rc::gen::inRange<std::size_t>(0, there.slots.size())] +=
        *rc::gen::inRange<std::int64_t>(0, 40);
  }
  const int found = aligned_block_size(metadata, 64, scratch);
  for (int block_size = 1; block_size <= 64; block_size *= 2) {
    RC_ASSERT(is_aligned(metadata, block_size) == (block_size <= found));
  }
  for (const int block_size : {1, 2, 3, 4, 5, 6, 8, 16}) {
    RC_ASSERT(is_accepted(metadata, block_size) == is_aligned(metadata, block_size));
  }
}

// Changes one entry, or the size by one.
template <class T>
void damage(std::vector<T>& array) {
  const int how = *rc::gen::inRange(0, 4);
  if (how == 0) array.push_back(0);
  if (array.empty()) return;
  if (how == 1) array.pop_back();
  if (how >= 2) {
    constexpr T kLow = std::numeric_limits<T>::min();
    constexpr T kHigh = std::numeric_limits<T>::max();
    array[*rc::gen::inRange<std::size_t>(0, array.size())] = *rc::gen::oneOf(
        rc::gen::element(T{kLow}, T{kHigh}, T{-1}, T{-2}, T{0}), rc::gen::inRange<T>(-3, 40));
  }
  array.shrink_to_fit();  // so that AddressSanitizer knows the end
}

template <class T>
std::vector<T> copy_of(const ArrayView<T>& array) {
  return std::vector<T>(array.begin(), array.end());
}

// Every key of an accepted batch has a table entry inside the table.
void assert_in_range(const BatchView& batch, int block_size) {
  const BlockTables& tables = batch.kv.blocks;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    RC_ASSERT(batch.kv.lens[s] >= 0);
    RC_ASSERT(batch.queries.begins[s] <= batch.queries.ends[s]);
    if (batch.kv.lens[s] == 0) continue;
    const std::int64_t last = (batch.kv.lens[s] - 1) / block_size;
    if (tables.kind == BlockTables::Kind::kPadded) {
      RC_ASSERT(last < tables.row_stride);
      RC_ASSERT(s * tables.row_stride + last < tables.indices.size);
    } else {
      RC_ASSERT(tables.begins[s] + last < tables.begins[s + 1]);
      RC_ASSERT(tables.begins[s + 1] <= tables.indices.size);
    }
  }
}

// Damaged metadata is refused with an Error, or gives a batch that may be read.
template <class Convert>
void assert_refused_or_sound(int block_size, Convert convert) {
  try {
    assert_in_range(convert(), block_size);
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::kInvalidArgument);
    RC_TAG("refused");
    return;
  }
  RC_TAG("accepted");
}

RC_GTEST_PROP(BatchConvertProperty, DamagedVllm, ()) {
  RandomBatch batch;
  draw_batch({.released = true}, batch);
  BatchStorage storage;
  const VllmMetadata good = to_vllm(batch.view, batch.block_size, storage);
  auto queries = copy_of(good.query_start_loc);
  auto lens = copy_of(good.seq_lens);
  auto table = copy_of(good.block_table);
  auto slots = copy_of(good.slot_mapping);
  std::vector<std::int64_t> stride{good.block_table_stride};
  const int which = *rc::gen::inRange(0, 5);
  if (which == 0) damage(queries);
  if (which == 1) damage(lens);
  if (which == 2) damage(table);
  if (which == 3) damage(slots);
  if (which == 4) damage(stride);
  stride.resize(1);
  assert_refused_or_sound(batch.block_size, [&] {
    return from_vllm({queries, lens, table, stride[0], slots}, batch.block_size);
  });
}

RC_GTEST_PROP(BatchConvertProperty, DamagedFlashInfer, ()) {
  RandomBatch batch;
  draw_batch({.slots = SlotChoice::kDerived}, batch);
  BatchStorage storage;
  const FlashInferMetadata good = to_flashinfer(batch.view, batch.block_size, storage);
  auto queries = copy_of(good.qo_indptr);
  auto indptr = copy_of(good.kv_indptr);
  auto indices = copy_of(good.kv_indices);
  auto last = copy_of(good.last_page_len);
  const int which = *rc::gen::inRange(0, 4);
  if (which == 0) damage(queries);
  if (which == 1) damage(indptr);
  if (which == 2) damage(indices);
  if (which == 3) damage(last);
  // Slots take memory for every query row, so absurd row counts go without.
  const NewKvRows new_kv = which == 0 ? NewKvRows::kSeparate : NewKvRows::kQueries;
  BatchStorage back;
  assert_refused_or_sound(batch.block_size, [&] {
    return from_flashinfer({queries, indptr, indices, last}, batch.block_size, new_kv, back);
  });
}

RC_GTEST_PROP(BatchConvertProperty, DamagedOpenVino, ()) {
  RandomBatch batch;
  draw_batch({.slots = SlotChoice::kDerived}, batch);
  BatchStorage storage;
  const OpenVinoMetadata good = to_openvino(batch.view, batch.block_size, storage);
  auto past = copy_of(good.past_lens);
  auto queries = copy_of(good.subsequence_begins);
  auto indices = copy_of(good.block_indices);
  auto begins = copy_of(good.block_indices_begins);
  const int which = *rc::gen::inRange(0, 4);
  if (which == 0) damage(past);
  if (which == 1) damage(queries);
  if (which == 2) damage(indices);
  if (which == 3) damage(begins);
  const std::int32_t max_context_len =
      *rc::gen::element(good.max_context_len, std::numeric_limits<std::int32_t>::max());
  BatchStorage back;
  assert_refused_or_sound(batch.block_size, [&] {
    return from_openvino({past, queries, indices, begins, max_context_len}, batch.block_size, back);
  });
}

RC_GTEST_PROP(BatchConvertProperty, DamagedTokenSlots, ()) {
  RandomBatch batch;
  draw_batch({.released = true}, batch);
  BatchStorage storage;
  const TokenSlotMetadata good = to_token_slots(batch.view, batch.block_size, storage);
  auto queries = copy_of(good.query_begins);
  auto keys = copy_of(good.kv_begins);
  auto read = copy_of(good.read_slots);
  auto write = copy_of(good.write_slots);
  const int which = *rc::gen::inRange(0, 4);
  if (which == 0) damage(queries);
  if (which == 1) damage(keys);
  if (which == 2) damage(read);
  if (which == 3) damage(write);
  BatchStorage back;
  assert_refused_or_sound(batch.block_size, [&] {
    return from_token_slots({queries, keys, read, write}, batch.block_size, back);
  });
}

RC_GTEST_PROP(BatchConvertProperty, DamagedSglang, ()) {
  RandomBatch batch;
  draw_batch({.released = true}, batch);
  BatchStorage storage;
  const SglangMetadata good = to_sglang(batch.view, batch.block_size, storage);
  auto pool = copy_of(good.req_to_token);
  auto requests = copy_of(good.req_pool_indices);
  auto lens = copy_of(good.seq_lens);
  auto extend = copy_of(good.extend_seq_lens);
  std::vector<std::int64_t> stride{good.req_to_token_stride};
  const int which = *rc::gen::inRange(0, 5);
  if (which == 0) damage(pool);
  if (which == 1) damage(requests);
  if (which == 2) damage(lens);
  if (which == 3) damage(extend);
  if (which == 4) damage(stride);
  stride.resize(1);
  BatchStorage back;
  assert_refused_or_sound(batch.block_size, [&] {
    return from_sglang({pool, stride[0], requests, lens, extend, good.out_cache_loc},
                       batch.block_size, back);
  });
}

}  // namespace
}  // namespace quire::testing
