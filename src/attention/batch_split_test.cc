// SPDX-License-Identifier: Apache-2.0
// Hand-computed splits and joins. Random ones are in tests/property/batch_split_property_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "quire/batch_convert.h"
#include "quire/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;

template <class T>
std::vector<T> values(const ArrayView<T>& array) {
  return std::vector<T>(array.begin(), array.end());
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// decode, prefill 3, decode, prefill 2; row 7 belongs to nobody. Block size 4.
struct Interleaved {
  I32 offsets{0, 1, 4, 5, 7};
  I32 lens{6, 3, 1, 8};
  I32 table{1, 2,  //
            3, 0,  //
            4, 0,  //
            5, 6};
  I64 slots{9, 12, 13, 14, 16, 26, 27, 99};

  BatchView view() const {
    BatchView batch;
    batch.queries = QueryRanges::packed(offsets);
    batch.kv = {lens, BlockTables::padded(table, 2), slots};
    return batch;
  }
};

TEST(BatchSplit, InterleavedPartsKeepTheirRows) {
  const Interleaved source;
  BatchSplit split;
  split_batch(source.view(), 1, NewKvRows::kQueries, split);
  EXPECT_THAT(split.prefill_sequences, ElementsAre(1, 3));
  EXPECT_THAT(split.decode_sequences, ElementsAre(0, 2));
  EXPECT_THAT(values(split.prefill.queries.begins), ElementsAre(1, 5));
  EXPECT_THAT(values(split.prefill.queries.ends), ElementsAre(4, 7));
  EXPECT_THAT(values(split.decode.queries.begins), ElementsAre(0, 4));
  EXPECT_THAT(values(split.decode.queries.ends), ElementsAre(1, 5));
  EXPECT_THAT(values(split.prefill.kv.lens), ElementsAre(3, 8));
  EXPECT_THAT(values(split.prefill.kv.blocks.indices), ElementsAre(3, 0, 5, 6));
  EXPECT_THAT(values(split.decode.kv.blocks.indices), ElementsAre(1, 2, 4, 0));
  EXPECT_THAT(values(split.prefill.kv.slots), ElementsAre(-1, 12, 13, 14, -1, 26, 27, 99));
  EXPECT_THAT(values(split.decode.kv.slots), ElementsAre(9, -1, -1, -1, 16, -1, -1, -1));

  BatchStorage storage;
  const BatchView joined = join_batches(split.prefill, split.decode, storage);
  EXPECT_THAT(values(joined.queries.begins), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(values(joined.queries.ends), ElementsAre(1, 4, 5, 7));
  EXPECT_EQ(values(joined.kv.lens), source.lens);
  EXPECT_EQ(values(joined.kv.blocks.indices), source.table);
  EXPECT_EQ(values(joined.kv.slots), source.slots);
}

TEST(BatchSplit, RunsPointIntoTheBatch) {
  const I32 offsets{0, 1, 2, 6};
  const I32 lens{3, 4, 9};
  const I32 begins{0, 1, 2, 5};
  const I32 indices{7, 8, 1, 2, 3};
  BatchView batch;
  batch.queries = QueryRanges::packed(offsets);
  batch.kv = {lens, BlockTables::indexed(begins, indices), {}};
  BatchSplit split;
  split_batch(batch, 1, NewKvRows::kQueries, split);
  EXPECT_EQ(split.decode.kv.lens.data, lens.data());
  EXPECT_EQ(split.prefill.kv.lens.data, lens.data() + 2);
  EXPECT_EQ(split.prefill.kv.blocks.begins.data, begins.data() + 2);
  EXPECT_EQ(split.prefill.kv.blocks.indices.data, indices.data());
  EXPECT_EQ(split.decode.num_sequences(), 2);
  EXPECT_EQ(split.prefill.num_sequences(), 1);
}

TEST(BatchSplit, SeparateRowsStayWithPrefill) {
  const Interleaved source;
  BatchView batch = source.view();
  batch.kv.slots = ArrayView<std::int64_t>(source.slots).subview(0, 3);
  BatchSplit split;
  EXPECT_THAT(error_of([&] { split_batch(batch, 1, NewKvRows::kQueries, split); }),
              HasSubstr("slots: size is 3, must be that of the query rows or more: 7"));
  split_batch(batch, 1, NewKvRows::kSeparate, split);
  EXPECT_EQ(split.prefill.kv.slots.data, source.slots.data());
  EXPECT_THAT(values(split.decode.kv.slots), IsEmpty());
  BatchStorage storage;
  EXPECT_THAT(values(join_batches(split.prefill, split.decode, storage).kv.slots),
              ElementsAre(9, 12, 13));
}

TEST(BatchSplit, EmptyPartsAndEmptyBatches) {
  const Interleaved source;
  BatchSplit split;
  BatchStorage storage;
  for (const std::int64_t max_q_len : {0, 100}) {
    split_batch(source.view(), max_q_len, NewKvRows::kQueries, split);
    EXPECT_EQ(split.prefill.num_sequences(), max_q_len == 0 ? 4 : 0);
    EXPECT_EQ(split.decode.num_sequences(), max_q_len == 0 ? 0 : 4);
    const BatchView joined = join_batches(split.prefill, split.decode, storage);
    EXPECT_EQ(values(joined.kv.blocks.indices), source.table);
    EXPECT_EQ(values(joined.kv.slots), source.slots);
  }
  split_batch(BatchView{}, 1, NewKvRows::kQueries, split);
  EXPECT_EQ(join_batches(split.prefill, split.decode, storage).num_sequences(), 0);
  EXPECT_THAT(error_of([&] { split_batch(BatchView{}, -1, NewKvRows::kQueries, split); }),
              HasSubstr("decode_max_q_len is -1, must be >= 0"));
}

TEST(BatchSplit, JoinOfForeignBatches) {
  const I32 begins_a{0, 4};
  const I32 ends_a{2, 5};
  const I32 lens_a{2, 1};
  const I32 table_a{1, 2};
  const I32 begins_b{2};
  const I32 ends_b{4};
  const I32 lens_b{7};
  const I32 table_begins_b{1, 4};
  const I32 table_b{99, 5, 6, 7};
  const std::vector<std::uint8_t> bits_a{3};
  const std::vector<std::uint8_t> bits_b{0xff, 1, 2};
  const I64 tree_a{-1, 0};
  const I64 tree_b{1};
  const I32 depths_b{-9, -9, 0, 0};
  BatchView a;
  a.queries = {begins_a, ends_a};
  a.kv = {lens_a, BlockTables::padded(table_a, 1), {}};
  a.tree_mask = {bits_a, tree_a, {}};
  BatchView b;
  b.queries = {begins_b, ends_b};
  b.kv = {lens_b, BlockTables::indexed(table_begins_b, table_b), {}};
  b.tree_mask = {bits_b, tree_b, depths_b};

  BatchStorage storage;
  const BatchView joined = join_batches(a, b, storage);
  EXPECT_THAT(values(joined.queries.begins), ElementsAre(0, 2, 4));
  EXPECT_EQ(joined.kv.blocks.kind, BlockTables::Kind::kIndexed);
  EXPECT_THAT(values(joined.kv.blocks.begins), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(values(joined.kv.blocks.indices), ElementsAre(1, 5, 6, 7, 2));
  EXPECT_THAT(values(joined.tree_mask.begins), ElementsAre(-1, 2, 0));
  EXPECT_THAT(values(joined.tree_mask.bits), ElementsAre(3, 0xff, 1, 2));
  EXPECT_THAT(values(joined.tree_mask.depths), ElementsAre(0, 1, 0, 0, 0));
}

TEST(BatchSplit, JoinRefusesConflicts) {
  const Interleaved source;
  BatchSplit split;
  BatchStorage storage;
  split_batch(source.view(), 1, NewKvRows::kQueries, split);
  BatchView decode = split.decode;
  decode.kv.slots = source.slots;
  EXPECT_THAT(error_of([&] { join_batches(split.prefill, decode, storage); }),
              HasSubstr("both parts store new row 1: slots are 12 and 12"));
  const I32 begins{0, 3};
  decode = split.decode;
  decode.queries.begins = begins;
  EXPECT_THAT(error_of([&] { join_batches(split.prefill, decode, storage); }),
              HasSubstr("decode sequence 1: query rows begin at 3, within the other part, must be "
                        ">= 4"));
  const I64 rows{0, 5};
  decode = split.decode;
  decode.kv.blocks = BlockTables::ragged(rows);
  EXPECT_THAT(error_of([&] { join_batches(split.prefill, decode, storage); }),
              HasSubstr("ragged rows"));
}

}  // namespace
}  // namespace quire
