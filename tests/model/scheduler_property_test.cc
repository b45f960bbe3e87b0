// SPDX-License-Identifier: Apache-2.0
// Random traces through the scheduler (scheduler_run.h). QUIRE_MODEL_TRACES sets how many traces
// the long run plays.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>

#include "model/scheduler_run.h"

namespace quire::test {
namespace {

TEST(SchedulerProperty, RandomTraces) {
  EXPECT_TRUE(rc::check("every step of every trace holds", [] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    try {
      SchedulerRun(seed).play();
    } catch (const std::exception& error) {
      RC_FAIL("seed " + std::to_string(seed) + ": " + error.what());
    }
  }));
}

TEST(SchedulerProperty, EqualTracesGiveEqualBatches) {
  EXPECT_TRUE(rc::check("two runs of a trace are equal", [] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    RC_ASSERT(SchedulerRun(seed).play() == SchedulerRun(seed).play());
  }));
}

TEST(SchedulerProperty, LongRunSeesEverything) {
  const char* text = std::getenv("QUIRE_MODEL_TRACES");
  const int num_traces = text != nullptr ? std::atoi(text) : 1500;
  SchedulerStats total;
  std::int64_t num_hits = 0;
  for (int seed = 0; seed < num_traces; ++seed) {
    SchedulerRun run(static_cast<std::uint32_t>(seed) + 1'000'000);
    try {
      run.play();
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed + 1'000'000 << ": " << error.what();
    }
    const SchedulerStats stats = run.stats();
    total.num_steps += stats.num_steps;
    total.num_submitted += stats.num_submitted;
    total.num_tokens += stats.num_tokens;
    total.num_recomputes += stats.num_recomputes;
    total.num_partial_releases += stats.num_partial_releases;
    total.num_swaps += stats.num_swaps;
    total.num_drafts += stats.num_drafts;
    total.num_accepted_drafts += stats.num_accepted_drafts;
    for (std::size_t i = 0; i < total.num_finished.size(); ++i) {
      total.num_finished[i] += stats.num_finished[i];
    }
    num_hits += run.block_stats().num_hit_blocks;
  }
  RecordProperty("steps", std::to_string(total.num_steps));
  RecordProperty("requests", std::to_string(total.num_submitted));
  if (num_traces < 400) return;  // too few to have seen everything
  EXPECT_GT(total.num_recomputes, num_traces / 10);
  EXPECT_GT(total.num_partial_releases, num_traces / 10);
  EXPECT_GT(total.num_swaps, num_traces / 10);
  EXPECT_GT(num_hits, num_traces);
  EXPECT_GT(total.num_accepted_drafts, num_traces);
  EXPECT_GT(total.num_drafts, total.num_accepted_drafts + num_traces);
  for (const std::int64_t count : total.num_finished) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace quire::test
