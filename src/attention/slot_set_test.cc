// SPDX-License-Identifier: Apache-2.0
#include "attention/slot_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "attention/validate.h"

namespace quire {
namespace {

std::vector<std::int32_t> garbage(std::int64_t num_slots) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(SlotSet::num_entries(num_slots)), 7);
}

TEST(SlotSet, TablesAreHalfEmptyPowersOfTwo) {
  EXPECT_EQ(SlotSet::num_entries(0), 16);
  EXPECT_EQ(SlotSet::num_entries(8), 16);
  EXPECT_EQ(SlotSet::num_entries(9), 32);
  EXPECT_EQ(SlotSet::num_entries(8192), 16384);
  EXPECT_EQ(SlotSet::num_entries(std::numeric_limits<std::int32_t>::max()), std::int64_t{1} << 32);
  for (std::int64_t n = 0; n < 300; ++n) {
    EXPECT_EQ(SlotSet::scratch_bytes(n) % kWorkspaceAlignment, 0);
    EXPECT_EQ(validation_scratch_bytes({.max_tokens = n}), SlotSet::scratch_bytes(n));
  }
}

TEST(SlotSet, FindsTheEarlierIndex) {
  const std::vector<std::int64_t> slots{5, 0, std::numeric_limits<std::int64_t>::max(), 5, 0};
  std::vector<std::int32_t> scratch = garbage(5);
  SlotSet set(scratch.data(), slots);
  EXPECT_EQ(set.insert(0), -1);
  EXPECT_EQ(set.insert(1), -1);
  EXPECT_EQ(set.insert(2), -1);
  EXPECT_EQ(set.insert(3), 0);
  EXPECT_EQ(set.insert(4), 1);
}

// All slots with one home: every entry is found by probing alone, around the end of the table too.
TEST(SlotSet, CollidingSlotsStayApart) {
  constexpr std::int64_t kInverse = -1018231460777725123;  // of the hash's factor, modulo 2^64
  static_assert(static_cast<std::uint64_t>(kInverse) * 0x9E3779B97F4A7C15ULL == 1);
  constexpr std::int64_t kCount = 64;
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; slots.size() < static_cast<std::size_t>(kCount); ++i) {
    // hash = 2^64 - 1 - i: its upper bits are all ones, the last entry of the table.
    slots.push_back(static_cast<std::int64_t>(static_cast<std::uint64_t>(-1 - i) *
                                              static_cast<std::uint64_t>(kInverse)));
  }
  std::vector<std::int32_t> scratch = garbage(kCount);
  SlotSet set(scratch.data(), slots);
  for (std::int64_t i = 0; i < kCount; ++i) ASSERT_EQ(set.insert(i), -1) << i;
  EXPECT_EQ(scratch.back(), 0);
  for (std::int64_t i = 1; i < kCount; ++i) EXPECT_EQ(scratch[static_cast<std::size_t>(i - 1)], i);

  slots.back() = slots[40];
  SlotSet again(scratch.data(), slots);
  for (std::int64_t i = 0; i + 1 < kCount; ++i) ASSERT_EQ(again.insert(i), -1) << i;
  EXPECT_EQ(again.insert(kCount - 1), 40);
}

TEST(SlotSet, LeavesWhatLiesBehindItsEntries) {
  const std::vector<std::int64_t> slots{1, 2, 3};
  std::vector<std::int32_t> scratch(static_cast<std::size_t>(SlotSet::num_entries(3)) + 4, 7);
  SlotSet set(scratch.data(), slots);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(set.insert(i), -1);
  for (std::size_t i = scratch.size() - 4; i < scratch.size(); ++i) EXPECT_EQ(scratch[i], 7);
}

}  // namespace
}  // namespace quire
