// SPDX-License-Identifier: Apache-2.0
// Hand-computed conversions, what each client cannot express, and refusals that name the culprit.
// Round trips of random batches are in tests/property/batch_convert_property_test.cc.
#include "quire/batch_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;

constexpr int kBlock = 4;
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

template <class T>
std::vector<T> values(const ArrayView<T>& array) {
  return std::vector<T>(array.begin(), array.end());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Prefill of 5 (nothing stored before), decode at 9, and a sequence that waits. Block size 4.
struct Mixed {
  I32 offsets{0, 5, 6, 6};
  I32 lens{5, 9, 3};
  I32 table{7, 2, 0,  //
            5, 1, 8,  //
            3, 0, 0};
  I64 slots{28, 29, 30, 31, 8, 32};

  BatchView view() const {
    BatchView batch;
    batch.queries = QueryRanges::packed(offsets);
    batch.kv = {lens, BlockTables::padded(table, 3), slots};
    return batch;
  }
  VllmMetadata vllm() const { return {offsets, lens, table, 3, slots}; }
};

TEST(BatchConvert, VllmIsAView) {
  const Mixed mixed;
  const BatchView batch = from_vllm(mixed.vllm(), kBlock);
  EXPECT_EQ(batch.queries.begins.data, mixed.offsets.data());
  EXPECT_EQ(batch.queries.ends.data, mixed.offsets.data() + 1);
  EXPECT_EQ(batch.kv.lens.data, mixed.lens.data());
  EXPECT_EQ(batch.kv.blocks.indices.data, mixed.table.data());
  EXPECT_EQ(batch.kv.slots.data, mixed.slots.data());

  BatchStorage storage;
  const VllmMetadata back = to_vllm(batch, kBlock, storage);
  EXPECT_EQ(back.block_table.data, mixed.table.data());
  EXPECT_THAT(values(back.query_start_loc), ElementsAre(0, 5, 6, 6));
}

TEST(BatchConvert, VllmPadsIndexedTables) {
  Mixed mixed;
  const I32 begins{0, 2, 5, 7};
  const I32 indices{7, 2, 5, 1, 8, 3, 99};  // one block more than sequence 2 needs
  BatchView batch = mixed.view();
  batch.kv.blocks = BlockTables::indexed(begins, indices);
  BatchStorage storage;
  storage.table.assign(64, 1234);  // what an earlier step left
  const VllmMetadata metadata = to_vllm(batch, kBlock, storage);
  EXPECT_EQ(metadata.block_table_stride, 3);
  EXPECT_EQ(values(metadata.block_table), mixed.table);
}

TEST(BatchConvert, FlashInferOfMixedBatch) {
  const Mixed mixed;
  BatchStorage storage;
  const FlashInferMetadata metadata = to_flashinfer(mixed.view(), kBlock, storage);
  EXPECT_THAT(values(metadata.qo_indptr), ElementsAre(0, 5, 6, 6));
  EXPECT_THAT(values(metadata.kv_indptr), ElementsAre(0, 2, 5, 6));
  EXPECT_THAT(values(metadata.kv_indices), ElementsAre(7, 2, 5, 1, 8, 3));
  EXPECT_THAT(values(metadata.last_page_len), ElementsAre(1, 1, 3));

  BatchStorage again;
  const BatchView batch = from_flashinfer(metadata, kBlock, NewKvRows::kQueries, again);
  EXPECT_THAT(values(batch.kv.lens), ElementsAre(5, 9, 3));
  EXPECT_EQ(values(batch.kv.slots), mixed.slots);
  EXPECT_THAT(values(from_flashinfer(metadata, kBlock, NewKvRows::kSeparate, again).kv.slots),
              IsEmpty());
}

TEST(BatchConvert, FlashInferDecodeHasNoQueryOffsets) {
  const I32 indptr{0, 1, 1, 3};
  const I32 indices{6, 4, 9, -1, -1};  // a buffer larger than needed
  const I32 last{4, 3, 2};             // the second has no block: not read
  BatchStorage storage;
  const BatchView batch =
      from_flashinfer({{}, indptr, indices, last}, kBlock, NewKvRows::kQueries, storage);
  EXPECT_THAT(values(batch.queries.begins), ElementsAre(0, 1, 2));
  EXPECT_THAT(values(batch.queries.ends), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(batch.kv.lens), ElementsAre(4, 0, 6));
  EXPECT_THAT(values(batch.kv.slots), ElementsAre(27, -1, 37));
  EXPECT_EQ(batch.kv.blocks.indices.size, 3);
}

TEST(BatchConvert, FlashInferQueriesBelowPositionZeroAreNotStored) {
  const I32 qo_indptr{0, 5};
  const I32 indptr{0, 1};
  const I32 indices{6};
  const I32 last{2};
  BatchStorage storage;
  const BatchView batch =
      from_flashinfer({qo_indptr, indptr, indices, last}, kBlock, NewKvRows::kQueries, storage);
  EXPECT_THAT(values(batch.kv.slots), ElementsAre(-1, -1, -1, 24, 25));
}

TEST(BatchConvert, OpenVinoOfMixedBatch) {
  const Mixed mixed;
  BatchStorage storage;
  const OpenVinoMetadata metadata = to_openvino(mixed.view(), kBlock, storage);
  EXPECT_THAT(values(metadata.past_lens), ElementsAre(0, 8, 3));
  EXPECT_THAT(values(metadata.subsequence_begins), ElementsAre(0, 5, 6, 6));
  EXPECT_THAT(values(metadata.block_indices), ElementsAre(7, 2, 5, 1, 8, 3));
  EXPECT_THAT(values(metadata.block_indices_begins), ElementsAre(0, 2, 5, 6));
  EXPECT_EQ(metadata.max_context_len, 9);

  BatchStorage again;
  const BatchView batch = from_openvino(metadata, kBlock, again);
  EXPECT_THAT(values(batch.kv.lens), ElementsAre(5, 9, 3));
  EXPECT_EQ(values(batch.kv.slots), mixed.slots);
}

TEST(BatchConvert, TokenSlotsOfMixedBatch) {
  const Mixed mixed;
  BatchStorage storage;
  const TokenSlotMetadata metadata = to_token_slots(mixed.view(), kBlock, storage);
  EXPECT_THAT(values(metadata.kv_begins), ElementsAre(0, 5, 14, 17));
  EXPECT_THAT(values(metadata.read_slots),
              ElementsAre(28, 29, 30, 31, 8, 20, 21, 22, 23, 4, 5, 6, 7, 32, 12, 13, 14));
  EXPECT_EQ(metadata.write_slots.data, mixed.slots.data());

  BatchStorage again;
  EXPECT_EQ(aligned_block_size(metadata, 256, again), kBlock);
  const BatchView fine = from_token_slots(metadata, 1, again);
  EXPECT_EQ(values(fine.kv.blocks.indices).size(), 17U);
  const BatchView coarse = from_token_slots(metadata, kBlock, again);
  EXPECT_THAT(values(coarse.kv.blocks.indices), ElementsAre(7, 2, 5, 1, 8, 3));
  EXPECT_THAT(values(coarse.kv.blocks.begins), ElementsAre(0, 2, 5, 6));
  EXPECT_THAT(error_of([&] { from_token_slots(metadata, 8, again); }),
              HasSubstr("sequence 0: key 0 has slot 28, not aligned to block_size 8"));
}

TEST(BatchConvert, CoarserBlocksNeedProof) {
  const I32 queries{0, 1};
  const I32 keys{0, 4};
  BatchStorage storage;
  const auto aligned = [&](const I64& slots) {
    return aligned_block_size({queries, keys, slots, {}}, 64, storage);
  };
  EXPECT_EQ(aligned({8, 9, 10, 11}), 8);     // 16 would need slot 0 or 16
  EXPECT_EQ(aligned({0, 1, 2, 3}), 64);      // aligned to all
  EXPECT_EQ(aligned({8, 9, 14, 15}), 2);     // two halves of different blocks
  EXPECT_EQ(aligned({8, 9, 11, 10}), 1);     // out of order
  EXPECT_EQ(aligned({9, 10, 11, 12}), 1);    // in order, but across blocks
  EXPECT_EQ(aligned({-1, -1, 10, 11}), 2);   // a released block of 2, not half of one of 4
  EXPECT_EQ(aligned({-1, -1, -1, -1}), 64);  // all released
  EXPECT_EQ(aligned_block_size({queries, keys, I64{0, 1, 2, 3}, {}}, 63, storage), 32);
}

TEST(BatchConvert, TokenSlotsOfFirstPrefillReadWhatTheyWrite) {
  const I32 offsets{0, 2, 4};
  const I64 write{8, 9, 4, 5};
  BatchStorage storage;
  const BatchView batch = from_token_slots({offsets, offsets, {}, write}, 2, storage);
  EXPECT_THAT(values(batch.kv.blocks.indices), ElementsAre(4, 2));
  const I32 longer{0, 3, 4};
  EXPECT_THAT(error_of([&] {
                from_token_slots({offsets, longer, {}, write}, 1, storage);
              }),
              HasSubstr("no read_slots: sequence 0: keys end at 3, must be the end of its "
                        "queries 2"));
}

TEST(BatchConvert, TokenSlotsOfRaggedRowsAndReleasedBlocks) {
  const I32 offsets{0, 1, 2};
  const I32 lens{3, 2};
  const I64 rows{std::int64_t{1} << 40, 7};
  BatchView batch;
  batch.queries = QueryRanges::packed(offsets);
  batch.kv = {lens, BlockTables::ragged(rows), {}};
  BatchStorage storage;
  const TokenSlotMetadata metadata = to_token_slots(batch, 1, storage);
  EXPECT_EQ(metadata.read_slots[2], rows[0] + 2);
  EXPECT_EQ(metadata.read_slots[4], 8);
  BatchStorage other;
  EXPECT_THAT(error_of([&] { from_token_slots(metadata, 1, other); }),
              HasSubstr("sequence 0: key 0 has slot 1099511627776, must be in -1..2147483647"));

  const I32 table{-1, 2, 5, -1};
  batch.kv.blocks = BlockTables::padded(table, 2);
  EXPECT_THAT(values(to_token_slots(batch, 2, storage).read_slots), ElementsAre(-1, -1, 4, 10, 11));
}

TEST(BatchConvert, SglangPicksRowsOfRequests) {
  const I32 pool{-7, -7, -7, -7,   // request 0 is somebody else's
                 12, 13, 14, -7,   //
                 -7, -7, -7, -7,   //
                 4,  5,  20, 21};  //
  const I64 requests{3, 1};
  const I64 lens{4, 3};
  const I32 extend{2, 3};
  const I64 out{20, 21, 12, 13, 14};
  BatchStorage storage;
  SglangMetadata metadata{pool, 4, requests, lens, extend, out};
  EXPECT_EQ(aligned_block_size(metadata, 16, storage), 2);
  const BatchView batch = from_sglang(metadata, 2, storage);
  EXPECT_THAT(values(batch.queries.ends), ElementsAre(2, 5));
  EXPECT_THAT(values(batch.kv.blocks.indices), ElementsAre(2, 10, 6, 7));
  EXPECT_EQ(batch.kv.slots.data, out.data());

  BatchStorage back;
  const SglangMetadata again = to_sglang(batch, 2, back);
  EXPECT_THAT(values(again.req_to_token), ElementsAre(4, 5, 20, 21, 12, 13, 14, 0));
  EXPECT_THAT(values(again.req_pool_indices), ElementsAre(0, 1));
  EXPECT_THAT(values(again.seq_lens), ElementsAre(4, 3));
  EXPECT_EQ(values(again.extend_seq_lens), extend);

  metadata.extend_seq_lens = {};  // decode
  EXPECT_THAT(values(from_sglang(metadata, 1, storage).queries.ends), ElementsAre(1, 2));
  const I64 outside{3, 4};
  metadata.req_pool_indices = outside;
  EXPECT_THAT(error_of([&] { from_sglang(metadata, 1, storage); }),
              HasSubstr("sequence 1: req_pool_index is 4, must be in 0..3"));
  metadata.req_pool_indices = requests;
  const I64 longer{5, 1};
  metadata.seq_lens = longer;
  EXPECT_THAT(error_of([&] { from_sglang(metadata, 1, storage); }),
              HasSubstr("sequence 0: seq_len is 5, must be in 0..4"));
}

TEST(BatchConvert, RefusesMalformedVllm) {
  const auto error = [](const std::function<void(Mixed&)>& spoil, int block_size = kBlock) {
    Mixed mixed;
    spoil(mixed);
    return error_of([&] { from_vllm(mixed.vllm(), block_size); });
  };
  EXPECT_THAT(error([](Mixed& m) { m.offsets[0] = 1; }), HasSubstr("entry 0 is 1, must be 0"));
  EXPECT_THAT(error([](Mixed& m) { m.offsets[2] = 4; }), HasSubstr("entry 2 is 4, must be >= 5"));
  EXPECT_THAT(error([](Mixed& m) { m.offsets.pop_back(); }), HasSubstr("size is 3, must be 4"));
  EXPECT_THAT(error([](Mixed& m) { m.lens[1] = -2; }), HasSubstr("sequence 1: kv_len is -2"));
  EXPECT_THAT(error([](Mixed& m) { m.lens[1] = 13; }),
              HasSubstr("sequence 1: kv_len 13 with block_size 4 needs table entries: 4, has 3"));
  EXPECT_THAT(error([](Mixed& m) { m.table.pop_back(); }), HasSubstr("do not fit, size is 8"));
  EXPECT_THAT(error([](Mixed& m) { m.slots[3] = -2; }), HasSubstr("entry 3 is -2, must be >= -1"));
  EXPECT_THAT(error([](Mixed&) {}, 0), HasSubstr("block_size is 0"));

  const Mixed mixed;
  VllmMetadata metadata = mixed.vllm();
  metadata.block_table.device.kind = DeviceKind::kCuda;
  EXPECT_THAT(error_of([&] { from_vllm(metadata, kBlock); }),
              HasSubstr("block table: lies on a device"));
  metadata = mixed.vllm();
  metadata.block_table_stride = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(error_of([&] { from_vllm(metadata, kBlock); }), HasSubstr("do not fit"));
  metadata = mixed.vllm();
  metadata.seq_lens.data = nullptr;
  EXPECT_THAT(error_of([&] { from_vllm(metadata, kBlock); }), HasSubstr("seq_lens: no data"));
}

TEST(BatchConvert, RefusesMalformedBatches) {
  const Mixed mixed;
  const auto error = [&](const std::function<void(BatchView&)>& spoil) {
    BatchView batch = mixed.view();
    spoil(batch);
    BatchStorage storage;
    return error_of([&] { to_token_slots(batch, 1, storage); });
  };
  const I32 begins{0, 6, 12, 15};
  const I32 falling{0, 6, 5, 15};
  const I32 overlap{0, 4, 6};
  const I32 reversed{5, 4, 6};
  const I32 indices(14);
  const I64 rows{0, -1, 4};
  const I64 huge{0, std::numeric_limits<std::int64_t>::max(), 4};
  const I64 tree{0, -1, -1};  // 5 queries take 5 bytes, 4 are there
  const I64 below{-1, -2, -1};
  const std::vector<std::uint8_t> bits(4);
  EXPECT_THAT(error([&](BatchView& b) { b.queries.begins = overlap; }),
              HasSubstr("sequence 1: query rows begin at 4, must be >= 5"));
  EXPECT_THAT(error([&](BatchView& b) { b.queries.ends = reversed; }),
              HasSubstr("sequence 1: query rows end at 4, must be >= 5"));
  EXPECT_THAT(error([&](BatchView& b) { b.queries.ends.size = 2; }),
              HasSubstr("query ends: size is 2, must be 3"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.lens.size = 4; }),
              HasSubstr("kv lens: size is 4, must be 3"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.slots.size = -1; }),
              HasSubstr("slots: size is -1, must be >= 0"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks.row_stride = -1; }),
              HasSubstr("row stride is -1"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks = BlockTables::indexed(begins, indices); }),
              HasSubstr("block table begins: entry 3 is 15, must be <= 14"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks = BlockTables::indexed(falling, indices); }),
              HasSubstr("block table begins: entry 2 is 5, must be >= 6"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks = BlockTables::ragged(rows); }),
              HasSubstr("sequence 1: first ragged row is -1"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks = BlockTables::ragged(huge); }),
              HasSubstr("sequence 1: first ragged row is 9223372036854775807"));
  EXPECT_THAT(error([&](BatchView& b) { b.kv.blocks.kind = static_cast<BlockTables::Kind>(7); }),
              HasSubstr("block tables: kind is 7"));
  EXPECT_THAT(error([&](BatchView& b) {
                b.tree_mask = {bits, tree, {}};
              }),
              HasSubstr("sequence 0: tree mask begins at byte 0, must be -1 or in 0..-1"));
  EXPECT_THAT(error([&](BatchView& b) {
                b.tree_mask = {bits, below, {}};
              }),
              HasSubstr("sequence 1: tree mask begins at byte -2"));
  EXPECT_THAT(error([&](BatchView& b) {
                b.tree_mask = {{}, below, overlap};
              }),
              HasSubstr("tree depths: size is 3, must be >= 6"));
  EXPECT_THAT(error([&](BatchView& b) { b.tree_mask.depths = overlap; }),
              HasSubstr("tree depths: given without begins, size is 3"));
  EXPECT_THAT(error([&](BatchView& b) { b.tree_mask.bits = bits; }),
              HasSubstr("tree mask bits: given without begins, size is 4"));
}

TEST(BatchConvert, RefusesMalformedFlashInfer) {
  BatchStorage storage;
  const I32 one_query{0, 1};
  const auto error = [&](const I32& indptr, const I32& indices, const I32& last, int block_size) {
    return error_of([&] {
      from_flashinfer({one_query, indptr, indices, last}, block_size, NewKvRows::kQueries, storage);
    });
  };
  EXPECT_THAT(error({0, 2}, {1, 2}, {0}, 4), HasSubstr("last_page_len is 0, must be in 1..4"));
  EXPECT_THAT(error({0, 2}, {1, 2}, {5}, 4), HasSubstr("last_page_len is 5, must be in 1..4"));
  EXPECT_THAT(error({0, 3}, {1, 2}, {1}, 4), HasSubstr("kv_indices: size is 2, must be >= 3"));
  EXPECT_THAT(error({0, 2}, {1, 2}, {kMax}, kMax), HasSubstr("kv_len is 4294967294"));
  EXPECT_THAT(error({0, 2}, {1, -3}, {1}, 4),
              HasSubstr("sequence 0: new key 4 lies in block -3, must be >= 0"));
}

TEST(BatchConvert, RefusesMalformedOpenVino) {
  BatchStorage storage;
  const I32 begins{0, 2};
  const I32 indices{1, 2};
  const auto error = [&](const I32& past, const I32& queries, std::int32_t max_context_len) {
    return error_of([&] {
      from_openvino({past, queries, indices, begins, max_context_len}, kBlock, storage);
    });
  };
  EXPECT_THAT(error({-1}, {0, 2}, 9), HasSubstr("sequence 0: past_len is -1, must be >= 0"));
  EXPECT_THAT(error({3}, {0, 2}, 4), HasSubstr("past_len + q_len is 5, must be <= max_context_"));
  EXPECT_THAT(error({kMax}, {0, 2}, kMax), HasSubstr("past_len + q_len is 2147483649"));
  EXPECT_THAT(error({7}, {0, 2}, 9), HasSubstr("needs table entries: 3, has 2"));
}

TEST(BatchConvert, RefusesWhatAClientCannotExpress) {
  BatchStorage storage;
  const auto refusals = [&](const BatchView& batch, int block_size) {
    return std::vector<std::string>{error_of([&] { to_vllm(batch, block_size, storage); }),
                                    error_of([&] { to_flashinfer(batch, block_size, storage); }),
                                    error_of([&] { to_openvino(batch, block_size, storage); })};
  };
  const Mixed mixed;
  const I32 begins{0, 6, 7};
  const I32 ends{5, 7, 7};
  BatchView batch = mixed.view();
  batch.queries = {begins, ends};
  EXPECT_THAT(refusals(batch, kBlock),
              ::testing::Each(HasSubstr("sequence 1: query rows begin at 6, must be 5")));
  EXPECT_THAT(error_of([&] { to_token_slots(batch, kBlock, storage); }),
              HasSubstr("packs queries without gaps"));

  const I64 rows{0, 10, 20};
  batch = mixed.view();
  batch.kv.blocks = BlockTables::ragged(rows);
  EXPECT_THAT(refusals(batch, 1), ::testing::Each(HasSubstr("ragged rows")));

  const std::vector<std::uint8_t> bits(5);
  const I64 tree{-1, 0, -1};
  batch = mixed.view();
  batch.tree_mask = {bits, tree, {}};
  EXPECT_THAT(refusals(batch, kBlock), ::testing::Each(HasSubstr("tree mask: sequence 1")));
  EXPECT_THAT(error_of([&] { to_sglang(batch, kBlock, storage); }), HasSubstr("tree mask"));
}

TEST(BatchConvert, RefusesSlotsThatTheFormImpliesOtherwise) {
  BatchStorage storage;
  Mixed mixed;
  mixed.slots[4] = 9;
  EXPECT_THAT(error_of([&] { to_flashinfer(mixed.view(), kBlock, storage); }),
              HasSubstr("sequence 0: query 4 has slot 9, its position implies 8"));
  mixed = Mixed();
  mixed.slots.push_back(-1);  // a padded row is no loss
  EXPECT_NO_THROW(to_openvino(mixed.view(), kBlock, storage));
  mixed.slots.push_back(3);
  EXPECT_THAT(error_of([&] { to_openvino(mixed.view(), kBlock, storage); }),
              HasSubstr("row 7 of no query has slot 3"));
  mixed.slots.clear();
  EXPECT_NO_THROW(to_flashinfer(mixed.view(), kBlock, storage));
  EXPECT_THAT(error_of([&] { to_openvino(mixed.view(), kBlock, storage); }),
              HasSubstr("OpenVINO stores every new token: sequence 0: query 0"));
  mixed.lens[1] = 0;
  EXPECT_THAT(error_of([&] { to_openvino(mixed.view(), kBlock, storage); }),
              HasSubstr("sequence 1: q_len is 1, must be <= kv_len 0"));
}

TEST(BatchConvert, StepsOfASeenSizeAllocateNothing) {
  const Mixed mixed;
  BatchStorage storage;
  to_openvino(mixed.view(), kBlock, storage);
  const void* table = storage.table.data();
  const void* lens = storage.lens.data();
  Mixed shorter;
  shorter.lens = {5, 5, 0};
  shorter.slots[5] = 4;
  to_openvino(shorter.view(), kBlock, storage);
  to_openvino(mixed.view(), kBlock, storage);
  EXPECT_EQ(storage.table.data(), table);
  EXPECT_EQ(storage.lens.data(), lens);
}

}  // namespace
}  // namespace quire
