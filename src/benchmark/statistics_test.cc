// SPDX-License-Identifier: Apache-2.0
#include "benchmark/statistics.h"

#include <gtest/gtest.h>

namespace quire::benchmark {
namespace {

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_DOUBLE_EQ(median({7}), 7);
  EXPECT_DOUBLE_EQ(median({9, 1, 4}), 4);
  EXPECT_DOUBLE_EQ(median({9, 1, 4, 2}), 3);
}

TEST(Statistics, SmallestIsTheBestTime) {
  EXPECT_DOUBLE_EQ(smallest({3, 0.5, 2}), 0.5);
}

// In a slow phase both take ten times as long; their ratio does not move. The ratio of the best
// times would mix phases: 1 / 3.
TEST(Statistics, RatiosArePaired) {
  EXPECT_DOUBLE_EQ(median_ratio({1, 20, 30}, {3, 40, 60}), 0.5);
}

TEST(Statistics, SpreadIsHalfTheQuartileDistance) {
  EXPECT_DOUBLE_EQ(relative_spread({2, 2, 2, 2}), 0);
  EXPECT_DOUBLE_EQ(relative_spread({8, 9, 10, 11, 12}), 0.1);
}

}  // namespace
}  // namespace quire::benchmark
