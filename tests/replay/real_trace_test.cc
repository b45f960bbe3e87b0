// SPDX-License-Identifier: Apache-2.0
// The published trace at its full size: what is known of it must come out exactly.
#include <gtest/gtest.h>

#include <string>

#include "replay/cache_plan.h"
#include "replay/real_trace.h"
#include "replay/replay.h"
#include "replay/trace_reader.h"

namespace quire::replay {
namespace {

constexpr std::int64_t kFullBlocks = 276'491;
constexpr std::int64_t kIdealHits = 105'592;

ReplayReport run(const std::string& path, std::int64_t num_blocks, const ReplayOptions& options) {
  const Workload workload(read_trace(path), {});
  CachePlan plan{.block_size = 512, .block_bytes = 64 << 20, .num_blocks = num_blocks};
  if (num_blocks == 0) plan.num_blocks = blocks_for_all(workload, 512);
  MemoryRunner runner({}, manager_options(plan));
  ReplayReport report = replay(workload, runner, options);
  EXPECT_EQ(report.num_requests, 12'031);
  EXPECT_EQ(report.prompt_tokens, 144'793'823);
  EXPECT_EQ(report.full_blocks, kFullBlocks);
  EXPECT_EQ(report.ideal_hit_blocks, kIdealHits);
  EXPECT_EQ(report.violations, 0) << testing::PrintToString(report.messages);
  return report;
}

TEST(RealTrace, SeriallyWithoutEvictionsHasExactlyTheKnownHits) {
  const std::string path = real_trace_path();
  if (path.empty()) GTEST_SKIP() << kNoRealTrace;
  const ReplayReport report =
      run(path, 0, {.serial = true, .validate_interval = 40'000, .sample_interval = 16});
  EXPECT_EQ(report.hit_blocks, kIdealHits);
  EXPECT_EQ(report.blocks.num_evictions, 0);
}

TEST(RealTrace, InTimeComesNearTheIdeal) {
  const std::string path = real_trace_path();
  if (path.empty()) GTEST_SKIP() << kNoRealTrace;
  const ReplayReport report = run(path, 0, {.validate_interval = 40'000, .sample_interval = 16});
  EXPECT_LE(report.hit_blocks, kIdealHits);
  EXPECT_GE(report.hit_blocks, kIdealHits * 99 / 100);
}

TEST(RealTrace, ASmallCacheStaysSound) {
  const std::string path = real_trace_path();
  if (path.empty()) GTEST_SKIP() << kNoRealTrace;
  const ReplayReport report = run(path, 1279, {.validate_interval = 500, .sample_interval = 16});
  EXPECT_GT(report.blocks.num_evictions, 0);
  EXPECT_LT(report.hit_blocks, kIdealHits);
}

}  // namespace
}  // namespace quire::replay
