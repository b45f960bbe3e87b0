// SPDX-License-Identifier: Apache-2.0
#include "benchmark/compare.h"

#include <gtest/gtest.h>

namespace quire::benchmark {
namespace {

Result result(const std::string& name, const std::string& isa, int threads, double share) {
  Result r;
  r.name = name;
  r.backend = "cpu";
  r.isa = isa;
  r.threads = threads;
  r.share_of_ceiling = share;
  return r;
}

TEST(Compare, OnlyBeyondTheMargin) {
  const std::vector<Result> before{result("a", "avx2", 2, 0.8)};
  const auto change = [&](double share) {
    return compare(before, {result("a", "avx2", 2, share)}, 0.1).at(0).change;
  };
  EXPECT_EQ(change(0.73), Change::kSame);
  EXPECT_EQ(change(0.71), Change::kRegression);
  EXPECT_EQ(change(0.87), Change::kSame);
  EXPECT_EQ(change(0.89), Change::kFaster);
}

TEST(Compare, LevelsAndThreadsAreCandidatesOfTheirOwn) {
  const std::vector<Result> before{result("a", "avx2", 2, 0.8), result("a", "avx2", 1, 0.4),
                                   result("a", "scalar", 2, 0.1)};
  const std::vector<Result> after{result("a", "scalar", 2, 0.1), result("a", "avx2", 1, 0.2)};
  const std::vector<Comparison> found = compare(before, after, 0.1);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].candidate, "cpu:scalar");
  EXPECT_EQ(found[0].change, Change::kSame);
  EXPECT_EQ(found[1].threads, 1);
  EXPECT_EQ(found[1].change, Change::kRegression);
  EXPECT_DOUBLE_EQ(found[1].old_share, 0.4);
  EXPECT_DOUBLE_EQ(found[1].new_share, 0.2);
}

TEST(Compare, WhatNoLongerRunsIsARegression) {
  Result refused = result("a", "avx2", 2, 0);
  refused.reason = "no";
  const std::vector<Comparison> found = compare({result("a", "avx2", 2, 0.8)}, {refused}, 0.1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].change, Change::kLost);
  EXPECT_EQ(found[0].reason, "no");
  EXPECT_TRUE(is_regression(found[0].change));
}

TEST(Compare, WhatIsNewOrWasNotMeasuredIsLeftOut) {
  Result refused = result("a", "avx2", 2, 0);
  refused.reason = "no";
  EXPECT_TRUE(
      compare({refused}, {result("a", "avx2", 2, 0.8), result("b", "avx2", 2, 0.8)}, 0.1).empty());
}

}  // namespace
}  // namespace quire::benchmark
