// SPDX-License-Identifier: Apache-2.0
#include "benchmark/bench_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "benchmark/loaded_case.h"
#include "benchmark/roof.h"
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
  for (const char* suite : {"decode", "prefill", "mixed", "append", "copy", "gpu"}) {
    EXPECT_FALSE(select_cases(bench_cases(), suite, "", true).empty()) << suite;
  }
}

TEST(SelectCases, BySuiteAndName) {
  EXPECT_THAT(names_of(select_cases(bench_cases(), "copy", "", false)),
              ::testing::ElementsAre("copy/1024/b16"));
  EXPECT_TRUE(select_cases(bench_cases(), "copy", "decode/*", false).empty());
  // The cases for GPUs are too large for most hosts.
  EXPECT_EQ(select_cases(bench_cases(), "all", "", false).size() +
                select_cases(bench_cases(), "gpu", "", false).size(),
            bench_cases().size());
}

TEST(GpuCases, HoldEveryRowOfTheTable) {
  const std::vector<std::string> names = names_of(select_cases(bench_cases(), "gpu", "", false));
  for (const char* name : {"gpu/decode/1x8192/hot",
                           "gpu/decode/1x8192",
                           "gpu/decode/1x131072",
                           "gpu/decode/8x8192",
                           "gpu/decode/32x1024",
                           "gpu/decode/32x8192",
                           "gpu/decode/128x8192",
                           "gpu/decode/256x1024",
                           "gpu/decode/ragged64",
                           "gpu/decode/32x8192/b1",
                           "gpu/decode/32x8192/b256",
                           "gpu/decode/fp8/32x8192",
                           "gpu/decode/int8/32x8192",
                           "gpu/decode/verify4/32x8192",
                           "gpu/decode/window1024/32x32768",
                           "gpu/decode/hd64/32x8192",
                           "gpu/decode/hd256/32x8192",
                           "gpu/decode/group1/32x8192",
                           "gpu/mixed/8x512@4096+120x4096",
                           "gpu/prefill/4x4096",
                           "gpu/append/8192/bf16",
                           "gpu/copy/1000x64K",
                           "gpu/swap_out/1000x64K",
                           "gpu/swap_in/1000x64K"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
  for (const BenchCase& c : select_cases(bench_cases(), "gpu", "gpu/copy/*", false)) {
    const conformance::Problem outline = bench_outline(c);
    EXPECT_EQ(num_copies(outline), 1000);
    EXPECT_EQ(work_of(c, outline).bytes, 1000 * 64 * 1024);
  }
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
