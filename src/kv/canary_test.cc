// SPDX-License-Identifier: Apache-2.0
#include "kv/canary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

constexpr int kBlockSize = 4;
constexpr int kHeads = 2;
constexpr int kDim = 3;
constexpr std::int64_t kSlotElements = kHeads * kDim;

// A cache of one layer, [block, token, head, dim], that a step of the tests writes by slot.
struct Cache {
  explicit Cache(std::int64_t num_blocks)
      : k(static_cast<std::size_t>(num_blocks * kBlockSize * kSlotElements)), v(k.size()) {
    view.k = k.data();
    view.v = v.data();
    view.k_strides = {.block = kBlockSize * kSlotElements, .head = kDim, .token = kSlotElements};
    view.v_strides = view.k_strides;
    view.num_blocks = num_blocks;
    view.num_kv_heads = kHeads;
    view.head_dim = kDim;
    view.value_dim = kDim;
    view.format.dtype = DType::kF32;
    view.format.block_size = kBlockSize;
  }
  void write(std::int64_t slot, float value) {
    for (std::int64_t i = 0; i < kSlotElements; ++i) {
      k[static_cast<std::size_t>(slot * kSlotElements + i)] = value;
      v[static_cast<std::size_t>(slot * kSlotElements + i)] = -value;
    }
  }
  static void copy(const Cache& src, Cache& dst, const BlockCopy& copy) {
    constexpr std::int64_t kBlock = kBlockSize * kSlotElements;
    std::copy_n(src.k.begin() + copy.src * kBlock, kBlock, dst.k.begin() + copy.dst * kBlock);
    std::copy_n(src.v.begin() + copy.src * kBlock, kBlock, dst.v.begin() + copy.dst * kBlock);
  }
  std::vector<float> k, v;
  KvCacheView view;
};

class KvCanaryTest : public testing::Test {
 protected:
  static BlockManagerOptions options() {
    BlockManagerOptions options;
    options.block_size = kBlockSize;
    options.pools = {{.num_blocks = 12, .num_host_blocks = 6}};
    options.groups = {{}};
    return options;
  }

  SequenceId admit(Token first) {
    std::vector<Token> tokens(6);
    std::iota(tokens.begin(), tokens.end(), first);
    return manager_.admit(Prompt(tokens, kBlockSize))->id;
  }

  void run_copies() {
    const CopyLists copies = manager_.take_copies();
    for (const BlockCopy& copy : copies.groups[0].on_device) Cache::copy(cache_, cache_, copy);
    for (const BlockCopy& copy : copies.groups[0].to_host) Cache::copy(cache_, host_, copy);
    for (const BlockCopy& copy : copies.groups[0].to_device) Cache::copy(host_, cache_, copy);
    canary_.copied(copies.groups);
    manager_.complete_copies(copies.ticket);
  }

  // One step of one sequence; returns the slots that it wrote.
  std::vector<std::int64_t> step(SequenceId id, std::int64_t num_tokens) {
    EXPECT_TRUE(manager_.append(id, num_tokens));
    run_copies();
    const StepSizes sizes = manager_.step_sizes(0, std::span(&id, 1));
    std::vector<std::int32_t> lens(1), begins(2);
    std::vector<std::int32_t> indices(static_cast<std::size_t>(sizes.num_blocks));
    std::vector<std::int64_t> slots(static_cast<std::size_t>(sizes.num_slots));
    manager_.write_step(0, std::span(&id, 1),
                        {.query_begins = {},
                         .kv_lens = lens,
                         .indices = indices,
                         .row_stride = 0,
                         .begins = begins,
                         .slots = slots});
    for (const std::int64_t slot : slots) cache_.write(slot, ++last_value_);
    const std::int64_t first = manager_.num_tokens(id);
    if (first < 6) {
      manager_.commit_prompt(id, num_tokens);
    } else {
      manager_.commit(id, std::vector<Token>(static_cast<std::size_t>(num_tokens), 77));
    }
    canary_.stored(id, slots);
    return slots;
  }

  std::string verify() {
    try {
      canary_.verify();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return error.what();
    }
    return "intact";
  }

  BlockManager manager_{options()};
  Cache cache_{12};
  Cache host_{6};
  KvCanary canary_{manager_, 0, std::span(&cache_.view, 1), std::span(&host_.view, 1)};
  float last_value_ = 0;
};

TEST_F(KvCanaryTest, StaysQuietThroughRightUse) {
  const SequenceId first = admit(0);
  step(first, 6);
  const SequenceId child = manager_.fork(first);
  step(child, 3);
  step(first, 3);
  EXPECT_EQ(verify(), "intact");
  ASSERT_TRUE(manager_.swap_out(first));
  run_copies();
  EXPECT_EQ(verify(), "intact");
  manager_.free(child);
  step(admit(50), 6);
  ASSERT_TRUE(manager_.swap_in(first));
  run_copies();
  step(first, 2);
  EXPECT_EQ(verify(), "intact");
  manager_.truncate(first, 7);
  step(first, 2);
  EXPECT_EQ(verify(), "intact");
}

TEST_F(KvCanaryTest, NamesTheSequenceAndBlockOfAForeignWrite) {
  const SequenceId first = admit(0);
  const SequenceId second = admit(50);
  const std::vector<std::int64_t> slots = step(first, 6);
  step(second, 6);
  cache_.write(slots[5], 1000);  // as a kernel with a wrong table would
  EXPECT_EQ(verify(),
            "sequence 0.1, group 0, token 5: block 2, slot 9 was overwritten since sequence 0.1 "
            "stored it");
}

TEST_F(KvCanaryTest, ASharedBlockNamesWhoStoredIt) {
  const SequenceId first = admit(0);
  const std::vector<std::int64_t> slots = step(first, 6);
  const SequenceId second = admit(0);
  step(second, 2);
  manager_.free(first);
  cache_.v[static_cast<std::size_t>(slots[1] * kSlotElements + kSlotElements - 1)] =
      5;  // one element
  EXPECT_EQ(verify(),
            "sequence 1.1, group 0, token 1: block 1, slot 5 was overwritten since sequence 0.1 "
            "stored it");
}

TEST_F(KvCanaryTest, WatchesTheHostToo) {
  const SequenceId first = admit(0);
  step(first, 6);
  ASSERT_TRUE(manager_.swap_out(first));
  run_copies();
  host_.write(manager_.block_table(first, 0)[0] * kBlockSize, 1000);
  EXPECT_NE(verify().find("host block"), std::string::npos);
}

TEST_F(KvCanaryTest, FreeSlotsMayHoldAnything) {
  const SequenceId first = admit(0);
  const std::vector<std::int64_t> slots = step(first, 6);
  cache_.write(slots[5] + 1, 1000);
  cache_.write(11 * kBlockSize, 1000);
  EXPECT_EQ(verify(), "intact");
}

}  // namespace
}  // namespace quire
