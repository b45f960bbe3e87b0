// SPDX-License-Identifier: Apache-2.0
#include "benchmark/bench_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "quire/error.h"

namespace quire::benchmark {
namespace {

std::vector<std::string> names_of(const std::vector<BenchCase>& cases) {
  std::vector<std::string> names;
  for (const BenchCase& c : cases) names.push_back(c.c.name);
  return names;
}

TEST(BenchCases, AreValidAndNamedOnce) {
  std::set<std::string> names;
  for (const BenchCase& c : bench_cases()) {
    EXPECT_NO_THROW(validate(c.c.spec)) << c.c.name;
    EXPECT_FALSE(c.c.sequences.empty()) << c.c.name;
    EXPECT_TRUE(names.insert(c.c.name).second) << c.c.name;
    EXPECT_EQ(c.c.name.substr(0, c.c.name.find('/')), c.suite) << c.c.name;
  }
  for (const BenchCase& c : bench_cases()) {
    EXPECT_TRUE(c.baseline.empty() || names.contains(c.baseline)) << c.c.name;
  }
}

TEST(BenchCases, EverySuiteHasQuickOnes) {
  for (const char* suite : {"decode", "prefill", "mixed", "append", "copy"}) {
    EXPECT_FALSE(select_cases(bench_cases(), suite, "", true).empty()) << suite;
  }
}

TEST(SelectCases, BySuiteAndName) {
  EXPECT_THAT(names_of(select_cases(bench_cases(), "copy", "", false)),
              ::testing::ElementsAre("copy/1024/b16"));
  EXPECT_TRUE(select_cases(bench_cases(), "copy", "decode/*", false).empty());
  EXPECT_EQ(select_cases(bench_cases(), "all", "", false).size(), bench_cases().size());
}

TEST(SelectCases, BringsTheBaselineAlong) {
  EXPECT_THAT(names_of(select_cases(bench_cases(), "decode", "decode/window*", false)),
              ::testing::UnorderedElementsAre("decode/16x1024/b32", "decode/window1024/16x32768"));
}

TEST(LogUniformLengths, AreTheSameEveryTimeAndSpread) {
  const std::vector<std::int64_t> lengths = log_uniform_lengths(32, 64, 16384);
  EXPECT_EQ(lengths, log_uniform_lengths(32, 64, 16384));
  EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 64);
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 16384);
  // Half of them below the geometric mean of the borders, give or take.
  const auto below = std::count_if(lengths.begin(), lengths.end(), [](auto n) { return n < 1024; });
  EXPECT_GE(below, 8);
  EXPECT_LE(below, 24);
}

TEST(CustomCase, NamesWhatContradictsItself) {
  EXPECT_THROW(custom_case({.num_q_heads = 7}), Error);
  EXPECT_THROW(custom_case({.batch = "q1"}), Error);
}

TEST(CustomCase, EightBitsAreScaledPerTensorUnlessSaid) {
  EXPECT_EQ(custom_case({.kv_dtype = DType::kI8}).c.spec.kv.scales, ScaleGranularity::kPerTensor);
}

}  // namespace
}  // namespace quire::benchmark
