// SPDX-License-Identifier: Apache-2.0
// Of the tables, exactly the blocks that some row can see are looked at; the definition in mask.h,
// asked for every pair of query and key, says which those are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attention/mask.h"
#include "attention/validate.h"
#include "quire/error.h"

namespace quire {
namespace {

struct Random {
  std::mt19937_64 engine{20240611};
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(limit));
  }
  bool coin() { return below(2) == 0; }
};

struct OneSequence {
  AttentionSpec spec;
  BatchBounds bounds{
      .max_sequences = 1, .max_tokens = 64, .max_kv_len = 512, .max_total_kv_len = 512};
  std::vector<std::int32_t> query{0, 0};
  std::vector<std::int32_t> lens{0};
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> scratch = std::vector<std::int32_t>(128);

  BatchFacts validate() {
    BatchView batch;
    batch.queries = QueryRanges::packed(query);
    batch.kv.lens = lens;
    batch.kv.blocks = BlockTables::padded(indices, static_cast<std::int64_t>(indices.size()));
    return validate_batch(spec, bounds, batch, Device{}, scratch.data());
  }

  std::vector<bool> visible_blocks() const {
    SequenceView sequence;
    sequence.q_len = query[1];
    sequence.kv_len = lens[0];
    std::vector<bool> visible(indices.size());
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        if (is_visible(spec.mask, spec.alignment, sequence, i, j)) {
          visible[static_cast<std::size_t>(j / spec.kv.block_size)] = true;
        }
      }
    }
    return visible;
  }
};

OneSequence random_sequence(Random& random) {
  OneSequence one;
  one.spec.num_q_heads = one.spec.num_kv_heads = 1;
  one.spec.head_dim = one.spec.value_dim = 8;
  one.spec.kv.block_size = static_cast<int>(1 + random.below(7));
  one.spec.alignment = random.below(4) == 0 ? Alignment::kUnaligned : Alignment::kAligned;
  one.spec.mask.causal = false;
  if (one.spec.alignment == Alignment::kAligned) {
    one.spec.mask.causal = random.coin();
    if (random.coin()) one.spec.mask.window_left = random.below(20);
    if (random.coin()) one.spec.mask.window_right = random.below(20);
    if (random.below(3) == 0) one.spec.mask.chunk = 1 + random.below(30);
  }
  one.query[1] = static_cast<std::int32_t>(random.below(12));
  one.lens[0] = static_cast<std::int32_t>(random.below(random.coin() ? 10 : 200));
  const int block_size = one.spec.kv.block_size;
  one.indices.resize(static_cast<std::size_t>((one.lens[0] + block_size - 1) / block_size));
  validate(one.spec);
  return one;
}

TEST(ValidateVisible, LooksAtExactlyTheVisibleBlocks) {
  Random random;
  int num_with_hidden = 0;
  for (int round = 0; round < 3000; ++round) {
    OneSequence one = random_sequence(random);
    const std::vector<bool> visible = one.visible_blocks();
    std::vector<std::size_t> seen;
    for (std::size_t i = 0; i < visible.size(); ++i) {
      one.indices[i] = visible[i] ? static_cast<std::int32_t>(random.below(1000)) : -9;
      if (visible[i]) seen.push_back(i);
    }
    num_with_hidden += seen.size() < visible.size() ? 1 : 0;
    BatchFacts::Largest largest;
    for (const std::size_t i : seen) {
      if (one.indices[i] > largest.value) {
        largest = {one.indices[i], 0, static_cast<std::int64_t>(i)};
      }
    }
    const BatchFacts facts = one.validate();
    ASSERT_EQ(facts.largest_block.value, largest.value) << to_string(one.spec);
    ASSERT_EQ(facts.largest_block.sequence, largest.sequence);
    ASSERT_EQ(facts.largest_block.index, largest.index);
    if (seen.empty()) continue;

    const std::size_t at =
        seen[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(seen.size())))];
    one.indices[at] = -3;
    try {
      one.validate();
      FAIL() << "entry " << at << " accepted: " << to_string(one.spec);
    } catch (const Error& error) {
      ASSERT_EQ(error.what(), "kv.blocks: sequence 0, table entry " + std::to_string(at) +
                                  ": negative block: -3");
    }
  }
  EXPECT_GT(num_with_hidden, 300);
}

// A table needs no entry behind the last visible block.
TEST(ValidateVisible, TablesEndWithTheLastVisibleBlock) {
  Random random;
  for (int round = 0; round < 1000; ++round) {
    OneSequence one = random_sequence(random);
    const std::vector<bool> visible = one.visible_blocks();
    std::size_t needed = visible.size();
    while (needed > 0 && !visible[needed - 1]) --needed;
    one.indices.resize(needed);
    EXPECT_NO_THROW(one.validate()) << to_string(one.spec);
    if (needed == 0) continue;
    one.indices.pop_back();
    EXPECT_THROW(one.validate(), Error) << to_string(one.spec);
  }
}

}  // namespace
}  // namespace quire
