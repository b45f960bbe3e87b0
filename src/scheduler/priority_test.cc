// SPDX-License-Identifier: Apache-2.0
// A waiting request does not wait for memory, or for a place, that running requests of a lower
// class hold; and still none starves.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/scheduler_fixture.h"

namespace quire {
namespace {

using testing::one_group;
using testing::SchedulerFixture;
using testing::token_run;

BlockManagerOptions uncached(std::int64_t num_blocks) {
  BlockManagerOptions blocks = one_group(num_blocks);
  blocks.prefix_cache = false;
  return blocks;
}

// The step in which a request first computes something; -1: in none so far.
std::int64_t first_step_of(const SchedulerFixture& f, RequestId id) {
  for (std::size_t i = 0; i < f.history.size(); ++i) {
    if (f.num_tokens_of(id, i) > 0) return static_cast<std::int64_t>(i);
  }
  return -1;
}

class WaitingOver : public ::testing::Test {
 protected:
  // 8 of 10 blocks are held by a request of class `low` when one of class 0 comes that needs 5.
  static std::int64_t step_of_urgent(std::int32_t low, bool allowed) {
    SchedulerOptions options{.max_tokens = 64, .max_sequences = 4};
    options.preemption = {.allow_for_waiting = allowed};
    SchedulerFixture f(options, uncached(10));
    f.submit(token_run(0, 30), 6, low);
    f.step();
    const RequestId urgent = f.submit(token_run(100, 18), 2);
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 2U);
    return first_step_of(f, urgent);
  }
};

TEST_F(WaitingOver, ALowerClassStartsAtOnce) {
  EXPECT_EQ(step_of_urgent(1, true), 1);
}

TEST_F(WaitingOver, ItsOwnClassOrWithoutTheRightWaits) {
  EXPECT_GE(step_of_urgent(0, true), 6);
  EXPECT_GE(step_of_urgent(1, false), 6);
}

// The order by prefix has let a later one start first: that is no reason to throw it out again.
TEST_F(WaitingOver, AnOlderRequestOfTheSameClassWaitsToo) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 4, .prefix = {.window = 4}},
                     one_group(10));
  f.submit(token_run(0, 12), 1);
  EXPECT_TRUE(f.run());
  const RequestId older = f.submit(token_run(100, 24), 2);
  const RequestId cached = f.submit(token_run(0, 14), 12);
  f.step();
  const std::size_t first = f.history.size() - 1;
  EXPECT_EQ(f.num_tokens_of(cached, first), 2);
  EXPECT_EQ(f.num_tokens_of(older, first), 0);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.scheduler.stats().num_preemptions(), 0);
  EXPECT_EQ(f.finished.at(older).num_new_tokens, 2);
}

TEST_F(WaitingOver, TakesWhatIsMissingAndNoMore) {
  SchedulerOptions options{.max_tokens = 64, .max_sequences = 4};
  options.preemption.allow_swap = false;
  SchedulerFixture f(options, uncached(10));
  const RequestId low = f.submit(token_run(0, 31), 6, 1);
  f.step();
  f.submit(token_run(100, 10), 1);  // three blocks, of which two are free
  f.step();
  EXPECT_EQ(f.scheduler.stats().num_partial_releases, 1);
  EXPECT_LE(f.scheduler.stats().num_lost_tokens, 4);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(low).num_new_tokens, 6);
}

TEST_F(WaitingOver, NobodyGivesUpBlocksInVain) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 4}, uncached(12));
  const RequestId high = f.submit(token_run(0, 30), 6, -1);
  const RequestId low = f.submit(token_run(100, 6), 6, 1);
  f.step();
  const RequestId middle = f.submit(token_run(200, 24), 2, 0);  // high and it do not fit
  for (int i = 0; i < 5; ++i) {
    f.step();
    EXPECT_EQ(f.num_tokens_of(high, f.history.size() - 1), 1);
    EXPECT_EQ(f.num_tokens_of(low, f.history.size() - 1), 1);
  }
  EXPECT_EQ(f.scheduler.stats().num_preemptions(), 0);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.reason(middle), FinishReason::kLength);
}

TEST_F(WaitingOver, TheLowestGivesUpFirstAndTheUrgentStayInOrder) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 8}, uncached(12));
  const RequestId middle = f.submit(token_run(0, 15), 8, 1);
  const RequestId low = f.submit(token_run(100, 15), 8, 2);
  f.step();
  const RequestId second = f.submit(token_run(200, 7), 4, 0);
  const RequestId first = f.submit(token_run(300, 15), 4, -1);
  const std::vector<ScheduledSequence> step = f.step();
  ASSERT_EQ(step.size(), 3U);
  EXPECT_EQ(step[0].request, first);
  EXPECT_EQ(step[1].request, second);
  EXPECT_EQ(step[2].request, middle);
  EXPECT_EQ(f.num_tokens_of(low, 1), 0);
  EXPECT_TRUE(f.run());
}

// A place costs no block: who leaves it keeps what it has computed.
TEST_F(WaitingOver, TakesAPlace) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 1}, uncached(20));
  const RequestId low = f.submit(token_run(0, 10), 8, 1);
  f.step();
  const RequestId urgent = f.submit(token_run(100, 10), 2, 0);
  f.step();
  EXPECT_EQ(f.num_tokens_of(urgent, 1), 10);
  EXPECT_EQ(f.scheduler.stats().num_lost_tokens, 0);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(low).num_new_tokens, 8);
}

TEST_F(WaitingOver, TheBudgetOfTheStepGoesByRankToo) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 4}, uncached(40));
  const RequestId low = f.submit(token_run(0, 60), 1, 1);
  f.step();
  const RequestId urgent = f.submit(token_run(100, 8), 1, 0);
  f.step();
  EXPECT_EQ(f.num_tokens_of(urgent, 1), 8);
  EXPECT_EQ(f.num_tokens_of(low, 1), 0);
  EXPECT_TRUE(f.run());
}

// Urgent requests come in every step, and two of them fill the cache.
std::int64_t steps_until_ended(int aging_steps, std::int32_t priority, int max_steps) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 4, .aging_steps = aging_steps},
                     uncached(10));
  const RequestId patient = f.submit(token_run(0, 12), 5, priority);
  for (int i = 0; i < max_steps; ++i) {
    f.submit(token_run(100, 18), 2);
    f.step();
    if (f.reason(patient)) return i + 1;
  }
  return -1;
}

TEST_F(WaitingOver, NoneStarves) {
  EXPECT_EQ(steps_until_ended(0, 1, 400), -1);  // without aging it does
  // After aging_steps steps only a finite number stand above it: those that came before. Two at a
  // time run for two steps, so a queue of n is gone after n more; then it needs six steps itself.
  for (const int aging_steps : {5, 20}) {
    const std::int64_t one = steps_until_ended(aging_steps, 1, 400);
    EXPECT_GT(one, aging_steps);
    EXPECT_LE(one, 2 * aging_steps + 16);
    const std::int64_t two = steps_until_ended(aging_steps, 2, 400);
    EXPECT_GT(two, 2 * aging_steps);
    EXPECT_LE(two, 4 * aging_steps + 16);
  }
}

}  // namespace
}  // namespace quire
