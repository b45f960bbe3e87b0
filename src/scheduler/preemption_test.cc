// SPDX-License-Identifier: Apache-2.0
// Who gives up blocks for whom, in which way, and that all three ways bring a request to its end.
#include "scheduler/preemption.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/scheduler_fixture.h"

namespace quire {
namespace {

using testing::one_group;
using testing::SchedulerFixture;
using testing::token_run;

constexpr PreemptionOptions kRecomputeOnly{.allow_partial = false, .allow_swap = false};
constexpr PreemptionOptions kPartialOnly{.allow_partial = true, .allow_swap = false};
constexpr PreemptionOptions kSwapOnly{.allow_partial = false, .allow_swap = true};

// What a tail of so many tokens costs grows with what stands before it.
TEST(Preemption, CostsAreTheDocumentedSums) {
  const PreemptionOptions costs{
      .token_seconds = 2, .key_seconds = 1, .byte_seconds = 0.5, .token_bytes = 8};
  EXPECT_DOUBLE_EQ(recompute_seconds(costs, 0, 10), 20 + 50);
  EXPECT_DOUBLE_EQ(recompute_seconds(costs, 6, 10), 8 + 50 - 18);
  EXPECT_DOUBLE_EQ(swap_seconds(costs, 10), 2 * 0.5 * 8 * 10);
}

TEST(Preemption, TheCheapestPossibleWay) {
  const PreemptionOptions costs{.token_seconds = 1,
                                .key_seconds = 0,
                                .byte_seconds = 1,
                                .token_bytes = 1};  // swap costs 2 per token of the whole
  const auto choose = [&](std::int64_t num_computed, std::int64_t num_to_cut, bool can_swap) {
    return choose_preemption(costs, {num_computed, num_to_cut, can_swap});
  };
  EXPECT_EQ(choose(100, 16, true), PreemptionKind::kPartialRelease);
  EXPECT_EQ(choose(100, 100, true), PreemptionKind::kRecompute);  // nothing would be left
  EXPECT_EQ(choose(0, 0, false), PreemptionKind::kRecompute);

  PreemptionOptions fast_copy = costs;
  fast_copy.byte_seconds = 0.01;
  const PreemptionCase half{.num_computed = 100, .num_to_cut = 50, .can_swap = true};
  EXPECT_EQ(choose_preemption(fast_copy, half), PreemptionKind::kSwap);
  const PreemptionCase no_room{.num_computed = 100, .num_to_cut = 50, .can_swap = false};
  EXPECT_EQ(choose_preemption(fast_copy, no_room), PreemptionKind::kPartialRelease);
  fast_copy.allow_partial = false;
  EXPECT_EQ(choose_preemption(fast_copy, no_room), PreemptionKind::kRecompute);
  fast_copy.allow_swap = false;
  EXPECT_EQ(choose_preemption(fast_copy, half), PreemptionKind::kRecompute);
}

// Two requests that fit when they start and do not when they have grown.
SchedulerFixture make_tight(const PreemptionOptions& preemption, bool prefix_cache = false) {
  BlockManagerOptions blocks = one_group(7);
  blocks.pools[0].num_host_blocks = 9;
  blocks.prefix_cache = prefix_cache;
  return SchedulerFixture({.max_tokens = 32, .max_sequences = 4, .preemption = preemption}, blocks);
}

struct Outcome {
  SchedulerStats stats;
  std::int64_t num_host_blocks_seen = 0;
};

Outcome play(const PreemptionOptions& preemption, bool prefix_cache) {
  SchedulerFixture f = make_tight(preemption, prefix_cache);
  const RequestId first = f.submit(token_run(0, 8), 12);
  const RequestId second = f.submit(token_run(100, 8), 12);
  Outcome outcome;
  while (f.scheduler.num_unfinished() > 0 && f.history.size() < 200) {
    f.step();
    outcome.num_host_blocks_seen =
        std::max(outcome.num_host_blocks_seen, f.manager.stats().pools[0].num_host_in_use);
    // The first in rank gets its token in every step.
    if (!f.reason(first) && f.history.size() <= 12) {
      EXPECT_GT(f.num_tokens_of(first, f.history.size() - 1), 0);
    }
  }
  f.step();
  EXPECT_EQ(f.finished.at(first).num_new_tokens, 12);
  EXPECT_EQ(f.finished.at(second).num_new_tokens, 12);
  EXPECT_EQ(f.manager.stats().pools[0].num_in_use, 0);
  EXPECT_EQ(f.manager.stats().pools[0].num_host_in_use, 0);
  outcome.stats = f.scheduler.stats();
  return outcome;
}

class PreemptionWays : public ::testing::TestWithParam<bool> {};

TEST_P(PreemptionWays, Recompute) {
  const SchedulerStats stats = play(kRecomputeOnly, GetParam()).stats;
  EXPECT_GT(stats.num_recomputes, 0);
  EXPECT_EQ(stats.num_partial_releases + stats.num_swaps, 0);
  EXPECT_GT(stats.num_lost_tokens, 0);
}

TEST_P(PreemptionWays, PartialRelease) {
  const SchedulerStats stats = play(kPartialOnly, GetParam()).stats;
  EXPECT_GT(stats.num_partial_releases, 0);
  EXPECT_EQ(stats.num_swaps, 0);
  EXPECT_GT(stats.num_lost_tokens, 0);
}

TEST_P(PreemptionWays, Swap) {
  const Outcome outcome = play(kSwapOnly, GetParam());
  EXPECT_GT(outcome.stats.num_swaps, 0);
  EXPECT_EQ(outcome.stats.num_recomputes + outcome.stats.num_partial_releases, 0);
  EXPECT_EQ(outcome.stats.num_lost_tokens, 0);
  EXPECT_GT(outcome.num_host_blocks_seen, 0);
}

INSTANTIATE_TEST_SUITE_P(PrefixCache, PreemptionWays, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "on" : "off"; });

// All three are allowed and possible: what they cost decides.
TEST(Preemption, CostsAloneChooseTheWay) {
  const PreemptionOptions slow_copies{.token_seconds = 1, .byte_seconds = 1};
  const SchedulerStats partial = play(slow_copies, false).stats;
  EXPECT_GT(partial.num_partial_releases, 0);
  EXPECT_EQ(partial.num_swaps, 0);

  const PreemptionOptions fast_copies{.token_seconds = 1, .byte_seconds = 0};
  const SchedulerStats swap = play(fast_copies, false).stats;
  EXPECT_GT(swap.num_swaps, 0);
  EXPECT_EQ(swap.num_partial_releases + swap.num_recomputes, 0);

  // A request of one block has no tail to give up but all of it.
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 4, .preemption = slow_copies},
                     one_group(2));
  f.submit(token_run(0, 4), 5);
  f.submit(token_run(100, 3), 2);
  EXPECT_TRUE(f.run());
  EXPECT_GT(f.scheduler.stats().num_recomputes, 0);
  EXPECT_EQ(f.scheduler.stats().num_partial_releases, 0);
}

// The blocks of a swap serve in the same step: the copies are a stage of their own, in order.
TEST(Preemption, ASwapGivesItsBlocksInTheSameStep) {
  SchedulerFixture f = make_tight(kSwapOnly);
  const RequestId first = f.submit(token_run(0, 8), 12);
  f.submit(token_run(100, 8), 12);
  bool saw_swap = false;
  while (!saw_swap && f.history.size() < 50) {
    const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
    for (const CopyStage& stage : batch.copies()) {
      if (stage.groups[0].to_host.empty()) continue;
      saw_swap = true;
      ASSERT_EQ(batch.sequences().size(), 1U);
      EXPECT_EQ(batch.sequences()[0].request, first);
    }
    for (const ReadyRequest& ready : f.scheduler.commit(batch).ready) {
      f.scheduler.extend(ready.id, 5);
    }
    f.history.emplace_back();
  }
  EXPECT_TRUE(saw_swap);
}

TEST(Preemption, TheLowestInRankGivesUpFirst) {
  BlockManagerOptions blocks = one_group(9);
  blocks.prefix_cache = false;
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 4, .preemption = kRecomputeOnly}, blocks);
  const RequestId low = f.submit(token_run(0, 8), 12, 5);
  const RequestId high = f.submit(token_run(100, 8), 12, 0);
  const RequestId middle = f.submit(token_run(200, 8), 12, 1);
  while (f.scheduler.stats().num_preemptions() == 0 && f.history.size() < 50) f.step();
  const std::size_t last = f.history.size() - 1;
  EXPECT_EQ(f.num_tokens_of(low, last), 0);
  EXPECT_EQ(f.num_tokens_of(high, last), 1);
  EXPECT_EQ(f.num_tokens_of(middle, last), 1);
  EXPECT_TRUE(f.run());
}

TEST(Preemption, RecomputedRequestsFindTheirOwnBlocksAgain) {
  const std::int64_t with_cache = play(kRecomputeOnly, true).stats.num_tokens;
  const std::int64_t without = play(kRecomputeOnly, false).stats.num_tokens;
  EXPECT_LT(with_cache, without);
}

TEST(Preemption, APreemptedRequestThatWaitsForItsTokenIsNotAskedAgain) {
  BlockManagerOptions blocks = one_group(5);
  blocks.prefix_cache = false;
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 4, .preemption = kRecomputeOnly}, blocks);
  const RequestId first = f.submit(token_run(0, 7), 9);
  const RequestId silent = f.submit(token_run(100, 8), 4);
  f.step_without_tokens();
  ASSERT_EQ(f.result.ready.size(), 2U);
  for (int i = 0; i < 6; ++i) {
    f.scheduler.extend(first, 1);
    f.step_without_tokens();
    ASSERT_EQ(f.result.ready.size(), 1U);
    EXPECT_EQ(f.result.ready[0].id, first);
  }
  EXPECT_EQ(f.scheduler.stats().num_recomputes, 1);
  f.scheduler.extend(silent, 3);
  f.scheduler.finish(first);
  EXPECT_EQ(f.step().at(0).num_tokens, 9);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(silent).num_new_tokens, 4);
}

TEST(Preemption, ForkedRequestsAreCutUntilBlocksComeFree) {
  BlockManagerOptions blocks = one_group(8);
  blocks.prefix_cache = false;
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 4, .preemption = kPartialOnly}, blocks);
  const RequestId first = f.submit(token_run(0, 14), 12);
  f.step_without_tokens();
  for (int i = 0; i < 3; ++i) f.scheduler.fork(first);
  for (std::uint64_t id = first.value; id < first.value + 4; ++id) {
    f.scheduler.extend({id}, static_cast<Token>(id));
  }
  EXPECT_TRUE(f.run());
  EXPECT_GT(f.scheduler.stats().num_preemptions(), 0);
  for (const auto& [id, end] : f.finished) EXPECT_EQ(end.num_new_tokens, 12) << id.value;
  EXPECT_EQ(f.finished.size(), 4U);
}

// A pool that shrinks under a request leaves it to end, not to hang, whatever it has kept.
TEST(Preemption, AShrunkenPoolEndsWhatNoLongerFits) {
  for (const PreemptionOptions& preemption : {kRecomputeOnly, kPartialOnly, kSwapOnly}) {
    BlockManagerOptions blocks = one_group(12);
    blocks.pools[0].num_host_blocks = 20;
    SchedulerFixture f({.max_tokens = 32, .max_sequences = 4, .preemption = preemption}, blocks);
    const RequestId large = f.submit(token_run(0, 20), 16, 1);
    const RequestId other = f.submit(token_run(100, 4), 28);
    for (int i = 0; i < 3; ++i) f.step();
    while (!f.manager.resize(0, 1 + 8) && f.history.size() < 60) f.step();
    EXPECT_TRUE(f.run(400));
    EXPECT_EQ(f.reason(large), FinishReason::kTooLarge);
    EXPECT_EQ(f.reason(other), FinishReason::kLength);
    EXPECT_GT(f.scheduler.stats().num_preemptions(), 0);
  }
}

}  // namespace
}  // namespace quire
