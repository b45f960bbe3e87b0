// SPDX-License-Identifier: Apache-2.0
// What the GPU backend promises of recordings and of batches: one recording serves every batch
// within its bounds, and a sequence gives the same bits alone, in any batch and order, wherever its
// blocks lie, recorded or not. Runs on the emulator and, as gpu_graph_tests, on a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/random.h"
#include "gpu/ragged_calls.h"
#include "gpu/tested_gpu.h"

namespace quire::testing {
namespace {

using conformance::Random;

class GpuGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    gpu_ = make_tested_gpu();
    if (!gpu_.reason.empty()) GTEST_SKIP() << gpu_.reason;
  }

  // Blocks for the longest sequence and then some, so that sequences begin at different ones.
  int pool() const { return gpu_.split_kv_len / kBlockSize + 40; }
  int random_block(Random& random, int kv_len) const {
    const int needed = (kv_len + kBlockSize - 1) / kBlockSize;
    return static_cast<int>(random.below(pool() - needed + 1));
  }
  Sequence make_sequence(Random& random, int q_len, int kv_len, int rows_before = 0) const {
    return {q_len, kv_len, random_block(random, kv_len), random.next(), rows_before};
  }

  // Decodes, verifications, a chunk of prefill, what is split and what is empty.
  std::vector<Sequence> mixed_batch(std::uint64_t seed) const {
    Random random(seed);
    const int longest = gpu_.split_kv_len;
    const int chunk = gpu_.prefill_len;
    const auto shorter = [&](int most) { return most - static_cast<int>(random.below(most / 4)); };
    return {make_sequence(random, 1, longest),
            make_sequence(random, 0, 0),
            make_sequence(random, 4, shorter(longest), 2),
            make_sequence(random, chunk, shorter(longest)),
            make_sequence(random, 1, 1),
            make_sequence(random, 0, 33),
            make_sequence(random, chunk - 3, chunk - 3, 1),
            make_sequence(random, 3, 0),
            make_sequence(random, 1, shorter(100)),
            make_sequence(random, 4, 4)};
  }
  BatchBounds mixed_bounds() const {
    return {.max_sequences = 12,
            .max_tokens = 2 * gpu_.prefill_len + 32,
            .max_kv_len = gpu_.split_kv_len,
            .max_total_kv_len = 12 * gpu_.split_kv_len,
            .max_q_len = gpu_.prefill_len};
  }

  TestedGpu gpu_;
};

// Rows of every sequence of a batch, in its order. What is of nobody must be untouched, and what is
// of somebody written.
std::vector<Output> split_rows(const Output& output, const std::vector<Sequence>& batch,
                               std::int64_t max_tokens) {
  std::vector<Output> rows;
  std::int64_t row = 0;
  for (const Sequence& sequence : batch) {
    EXPECT_TRUE(is_poison(rows_of(output, max_tokens, row, sequence.rows_before)))
        << "rows before " << row + sequence.rows_before;
    row += sequence.rows_before;
    rows.push_back(rows_of(output, max_tokens, row, sequence.q_len));
    std::vector<float> lse(rows.back().lse.size() / sizeof(float));
    if (!lse.empty()) std::memcpy(lse.data(), rows.back().lse.data(), rows.back().lse.size());
    for (const float value : lse) {
      EXPECT_EQ(std::isfinite(value), sequence.kv_len > 0) << value << " from row " << row;
      EXPECT_FALSE(std::isnan(value)) << "from row " << row;
    }
    row += sequence.q_len;
  }
  EXPECT_TRUE(is_poison(rows_of(output, max_tokens, row, max_tokens - row))) << "from row " << row;
  return rows;
}

TEST_F(GpuGraph, OneRecordingServesEveryBatch) {
  const TwicePlacedCache cache(gpu_, pool(), pool());
  const BatchBounds bounds = mixed_bounds();
  RaggedCalls calls(gpu_, cache, bounds);
  Random random(3);
  const std::vector<Sequence> mixed = mixed_batch(5);
  std::vector<std::vector<Sequence>> batches{
      mixed,
      {},
      {make_sequence(random, 1, gpu_.split_kv_len - 7)},
      {make_sequence(random, gpu_.prefill_len, gpu_.prefill_len + 9, 3)},
      {make_sequence(random, 0, 0), make_sequence(random, 0, 0)},
      {make_sequence(random, 2, 0)},
      {},
      mixed};
  // As many as the bounds allow, of one token.
  for (int i = 0; i < 12; ++i) batches[6].push_back(make_sequence(random, 1, 5 + 9 * i, i % 2));
  for (std::size_t i = 0; i < batches.size(); ++i) {
    SCOPED_TRACE("batch " + std::to_string(i));
    const bool in_copies = i % 2 == 1;
    const Output replayed = calls.run(batches[i], Metadata::kRecorded, in_copies);
    const Output plain = calls.run(batches[i], Metadata::kOnHost, in_copies);
    EXPECT_TRUE(replayed == plain);
    split_rows(replayed, batches[i], bounds.max_tokens);
  }
}

TEST_F(GpuGraph, SequencesGiveTheSameBitsInEveryBatch) {
  const TwicePlacedCache cache(gpu_, pool(), pool());
  const BatchBounds bounds = mixed_bounds();
  RaggedCalls calls(gpu_, cache, bounds);
  const std::vector<Sequence> batch = mixed_batch(11);
  const std::vector<Output> want =
      split_rows(calls.run(batch, Metadata::kOnHost), batch, bounds.max_tokens);
  std::vector<Sequence> reversed(batch.rbegin(), batch.rend());
  for (const Metadata metadata : kEveryMetadata) {
    SCOPED_TRACE("metadata " + std::to_string(static_cast<int>(metadata)));
    const bool in_copies = metadata != Metadata::kOnHost;
    std::vector<Output> got =
        split_rows(calls.run(reversed, metadata, in_copies), reversed, bounds.max_tokens);
    std::reverse(got.begin(), got.end());
    for (std::size_t s = 0; s < batch.size(); ++s) {
      EXPECT_TRUE(got[s] == want[s]) << "sequence " << s << " in reversed order";
      const std::vector<Sequence> alone{batch[s]};
      const Output output = calls.run(alone, metadata, !in_copies);
      EXPECT_TRUE(split_rows(output, alone, bounds.max_tokens)[0] == want[s])
          << "sequence " << s << " alone";
    }
  }
}

// More items than thread blocks, which then take several each, and fewer.
TEST_F(GpuGraph, SequencesGiveTheSameBitsInBatchesOfEverySize) {
  const TwicePlacedCache cache(gpu_, pool(), pool());
  const std::int64_t count = gpu_.num_sequences;
  const BatchBounds bounds{.max_sequences = count,
                           .max_tokens = count,
                           .max_kv_len = 64,
                           .max_total_kv_len = 64 * count,
                           .max_q_len = 1};
  RaggedCalls many(gpu_, cache, bounds);
  RaggedCalls one(gpu_, cache,
                  {.max_sequences = 1,
                   .max_tokens = 1,
                   .max_kv_len = 64,
                   .max_total_kv_len = 64,
                   .max_q_len = 1});
  Random random(17);
  std::vector<Sequence> batch;
  for (int i = 0; i < count; ++i) {
    batch.push_back(make_sequence(random, 1, 1 + static_cast<int>(random.below(64))));
  }
  for (const Metadata metadata : kEveryMetadata) {
    const std::vector<Output> rows = split_rows(many.run(batch, metadata), batch, count);
    for (std::size_t s = 0; s < batch.size(); s += batch.size() / 4) {
      const std::vector<Sequence> alone{batch[s]};
      EXPECT_TRUE(one.run(alone, metadata) == rows[s]) << "sequence " << s << ", bounds of one";
      EXPECT_TRUE(split_rows(many.run(alone, metadata), alone, count)[0] == rows[s])
          << "sequence " << s << ", bounds of " << count;
    }
  }
}

// A thread block's run holds several splits of a unit, and begins and ends in the middle of one:
// what it folds as it goes, and what is merged of it, are the bits of one split for each thread
// block.
TEST_F(GpuGraph, SplitsGiveTheSameBitsInRunsAndAlone) {
  const int longest = gpu_.long_kv_len;
  const int pool = longest / kBlockSize + 40;
  const TwicePlacedCache cache(gpu_, pool, pool);
  const auto bounds = [&](std::int64_t count) {
    return BatchBounds{.max_sequences = count,
                       .max_tokens = 2 * count,
                       .max_kv_len = longest,
                       .max_total_kv_len = longest * count,
                       .max_q_len = 2};
  };
  RaggedCalls many(gpu_, cache, bounds(gpu_.num_long));
  RaggedCalls one(gpu_, cache, bounds(1));
  Random random(29);
  std::vector<Sequence> batch;
  for (int i = 0; i < gpu_.num_long; ++i) {
    const int kv_len = longest - static_cast<int>(random.below(longest / 8));
    const int first = static_cast<int>(random.below(40));
    batch.push_back({1 + i % 2, kv_len, first, random.next(), 0});
  }
  const std::vector<Output> rows =
      split_rows(many.run(batch, Metadata::kRecorded), batch, 2 * gpu_.num_long);
  for (std::size_t s = 0; s < batch.size(); s += 1 + batch.size() / 6) {
    const std::vector<Sequence> alone{batch[s]};
    EXPECT_TRUE(split_rows(one.run(alone, Metadata::kOnHost), alone, 2)[0] == rows[s])
        << "sequence " << s << " of " << batch[s].q_len << " queries";
  }
}

// The plan goes through sequences in rounds of as many as a thread block has threads.
TEST_F(GpuGraph, SequencesGiveTheSameBitsInEveryRoundOfThePlan) {
  constexpr std::int64_t kCount = 530;
  const TwicePlacedCache cache(gpu_, pool(), pool());
  const auto bounds = [](std::int64_t count) {
    return BatchBounds{.max_sequences = count,
                       .max_tokens = count,
                       .max_kv_len = 16,
                       .max_total_kv_len = 16 * count,
                       .max_q_len = 1};
  };
  RaggedCalls many(gpu_, cache, bounds(kCount));
  RaggedCalls one(gpu_, cache, bounds(1));
  Random random(31);
  std::vector<Sequence> batch;
  for (int i = 0; i < kCount; ++i) {
    batch.push_back(make_sequence(random, 1, 1 + static_cast<int>(random.below(16))));
  }
  const std::vector<Output> rows = split_rows(many.run(batch, Metadata::kOnHost), batch, kCount);
  for (const std::size_t s : {0U, 255U, 256U, 511U, 512U, 529U}) {
    EXPECT_TRUE(one.run({batch[s]}, Metadata::kOnHost) == rows[s]) << "sequence " << s;
  }
}

// Blocks whose elements 32 bits cannot count, written by copies, read by attention and by copies.
TEST_F(GpuGraph, BlocksBeyondTwoToThe31ElementsAreReached) {
  if (!gpu_.is_large) GTEST_SKIP() << "the emulated device has too little memory";
  const KvLayout layout = gpu_.backend->preferred_layout(TwicePlacedCache::make_spec(gpu_));
  const std::int64_t beyond = (std::int64_t{1} << 31) / (layout.block_bytes / 2) + 1;
  const std::int64_t needed = (beyond + pool()) * layout.block_bytes + (std::int64_t{1} << 30);
  const std::int64_t free = gpu_.meter->free_memory_bytes();
  if (free < needed) GTEST_SKIP() << free << " bytes of device memory are free, not " << needed;
  TwicePlacedCache cache(gpu_, pool(), beyond);
  ASSERT_GT(cache.copy_of(pool() - 1) * cache.view().k_strides.block, std::int64_t{1} << 31);
  RaggedCalls calls(gpu_, cache, mixed_bounds());
  const std::vector<Sequence> batch = mixed_batch(23);
  const Output low = calls.run(batch, Metadata::kOnHost);
  split_rows(low, batch, mixed_bounds().max_tokens);
  for (const Metadata metadata : kEveryMetadata) {
    EXPECT_TRUE(calls.run(batch, metadata, /*in_copies=*/true) == low);
  }
  cache.copy_back();
  EXPECT_TRUE(calls.run(batch, Metadata::kOnHost) == low);
}

}  // namespace
}  // namespace quire::testing
