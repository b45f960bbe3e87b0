// SPDX-License-Identifier: Apache-2.0
#include "layout/stride_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <set>

namespace quire {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

using Axes = std::array<StridedAxis, 3>;

TEST(StrideCheck, OffsetsFit) {
  EXPECT_TRUE(offsets_fit(Axes{{{4, 100}, {3, -10}, {2, 1}}}));
  EXPECT_TRUE(offsets_fit(Axes{{{1, kMost}, {0, std::numeric_limits<std::int64_t>::min()}}}));
  EXPECT_TRUE(offsets_fit(Axes{{{2, kMaxElementOffset}}}));
  EXPECT_FALSE(offsets_fit(Axes{{{2, kMaxElementOffset}, {2, 1}}}));
  EXPECT_FALSE(offsets_fit(Axes{{{2, std::numeric_limits<std::int64_t>::min()}}}));
  EXPECT_FALSE(offsets_fit(Axes{{{kMost, kMost}}}));
}

// Against all offsets written down: never accepts an overlap, and accepts every permuted or padded
// dense tensor.
TEST(StrideCheck, DisjointMeansDistinctOffsets) {
  int num_accepted = 0;
  for (std::int64_t a = -2; a <= 13; ++a) {
    for (std::int64_t b = -2; b <= 13; ++b) {
      for (std::int64_t c = 0; c <= 3; ++c) {
        const Axes axes{{{3, a}, {2, b}, {2, c}}};
        if (!strides_are_disjoint(axes)) continue;
        ++num_accepted;
        std::set<std::int64_t> offsets;
        for (std::int64_t i = 0; i < 12; ++i) {
          offsets.insert(i / 4 * a + i / 2 % 2 * b + i % 2 * c);
        }
        EXPECT_EQ(offsets.size(), 12U) << a << " " << b << " " << c;
      }
    }
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_TRUE(strides_are_disjoint(Axes{{{3, 4}, {2, 2}, {2, 1}}}));
  EXPECT_TRUE(strides_are_disjoint(Axes{{{3, 2}, {2, 6}, {2, 1}}}));
  EXPECT_TRUE(strides_are_disjoint(Axes{{{1, 0}, {0, -5}, {2, 1}}}));
  EXPECT_FALSE(strides_are_disjoint(Axes{{{3, 3}, {2, 2}, {2, 1}}}));
  EXPECT_FALSE(strides_are_disjoint(Axes{{{3, 0}, {2, 2}, {2, 1}}}));
}

}  // namespace
}  // namespace quire
