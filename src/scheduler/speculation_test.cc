// SPDX-License-Identifier: Apache-2.0
// Drafts are computed where there is room for them, kept where the caller agrees, and leave no
// trace where it does not.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/scheduler_fixture.h"

namespace quire {
namespace {

using testing::one_group;
using testing::SchedulerFixture;
using testing::token_run;

using Tokens = std::vector<Token>;

TEST(Speculation, DraftsAreComputedBehindTheLastToken) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 6), 9);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{50}, Tokens{51, 52, 53});
  const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
  EXPECT_EQ(Tokens(batch.tokens().begin(), batch.tokens().end()), (Tokens{50, 51, 52, 53}));
  EXPECT_EQ(batch.sequences()[0].num_tokens, 4);
  EXPECT_EQ(batch.sequences()[0].num_drafts, 3);
  EXPECT_TRUE(batch.sequences()[0].is_last_chunk);
  EXPECT_EQ(batch.positions()[3], 9);
  const StepResult result = f.scheduler.commit(batch);
  ASSERT_EQ(result.ready.size(), 1U);
  EXPECT_EQ(result.ready[0].row, 0);
  EXPECT_EQ(result.ready[0].num_drafts, 3);
  f.scheduler.validate();

  // Two are right, the third is not: 9 of 10 positions stay, and 54 is to be computed.
  f.scheduler.extend(id, Tokens{51, 52, 54});
  f.scheduler.validate();
  f.manager.validate();
  const std::vector<ScheduledSequence> next = f.step_without_tokens();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].first_position, 9);
  EXPECT_EQ(next[0].num_tokens, 1);
  EXPECT_EQ(f.scheduler.stats().num_drafts, 3);
  EXPECT_EQ(f.scheduler.stats().num_accepted_drafts, 2);
  EXPECT_EQ(f.manager.stats().num_rejected, 1);
  EXPECT_EQ(f.scheduler.new_tokens(id).size(), 4U);
}

TEST(Speculation, OnlyWhatWasAcceptedCanBeFound) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 4), 9);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{4}, Tokens{5, 6, 7, 8});
  f.step_without_tokens();
  EXPECT_EQ(f.manager.num_cached_tokens(Prompt(token_run(0, 9), 4)), 4);
  f.scheduler.extend(id, Tokens{5, 6, 99});
  EXPECT_EQ(f.manager.num_cached_tokens(Prompt(token_run(0, 9), 4)), 4);
  f.step();
  EXPECT_EQ(f.manager.num_cached_tokens(Prompt(Tokens{0, 1, 2, 3, 4, 5, 6, 99, 1}, 4)), 8);
  EXPECT_EQ(f.manager.num_cached_tokens(Prompt(token_run(0, 9), 4)), 4);
}

// A caller that has chosen otherwise may add several tokens too.
TEST(Speculation, DraftsThatTheTokensContradictAreNotKept) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 4), 9);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{4}, Tokens{5, 6, 7});
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{5, 60, 7});
  const std::vector<ScheduledSequence> next = f.step_without_tokens();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].first_position, 6);
  EXPECT_EQ(next[0].num_tokens, 2);
  EXPECT_EQ(f.scheduler.stats().num_accepted_drafts, 1);
}

// One token is left to compute in any case, since its row decides the next one.
TEST(Speculation, TokensThatAreAllDraftsLeaveOneToCompute) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 4), 9);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{4}, Tokens{5, 6});
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{5, 6});
  const std::vector<ScheduledSequence> next = f.step_without_tokens();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].first_position, 6);
  EXPECT_EQ(next[0].num_tokens, 1);
  EXPECT_EQ(f.result.ready.size(), 1U);
}

TEST(Speculation, NoDraftForATokenThatIsNeverComputed) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 4), 3);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{4}, Tokens{5, 6, 7, 8});
  f.step_without_tokens();
  EXPECT_EQ(f.result.ready[0].num_drafts, 1);
  f.scheduler.extend(id, Tokens{5, 6});
  EXPECT_EQ(f.scheduler.num_unfinished(), 0);
  EXPECT_EQ(f.manager.stats().num_sequences, 0);
}

TEST(Speculation, TheBudgetGoesToTokensFirst) {
  SchedulerFixture f({.max_tokens = 6, .max_sequences = 3, .max_chunk = 4}, one_group(32));
  const RequestId first = f.submit(token_run(0, 2), 9);
  const RequestId second = f.submit(token_run(10, 2), 9);
  f.step_without_tokens();
  ASSERT_EQ(f.result.ready.size(), 2U);
  f.scheduler.extend(first, Tokens{2}, Tokens{3, 4, 5, 6, 7});
  f.scheduler.extend(second, Tokens{12}, Tokens{13, 14, 15, 16, 17});
  const std::vector<ScheduledSequence> step = f.step_without_tokens();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[0].num_tokens, 4);  // max_chunk
  EXPECT_EQ(step[1].num_tokens, 2);  // what is left
}

TEST(Speculation, NobodyGivesUpBlocksForDrafts) {
  BlockManagerOptions blocks = one_group(5);
  blocks.prefix_cache = false;
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, blocks);
  const RequestId first = f.submit(token_run(0, 7), 6);
  const RequestId second = f.submit(token_run(10, 10), 2);
  f.step_without_tokens();
  ASSERT_EQ(f.result.ready.size(), 2U);
  f.scheduler.extend(first, Tokens{2}, Tokens{3, 4});  // one more block, and there is none
  f.scheduler.extend(second, 9);
  const std::vector<ScheduledSequence> step = f.step_without_tokens();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[0].num_drafts, 0);
  EXPECT_EQ(f.scheduler.stats().num_preemptions(), 0);
}

TEST(Speculation, WhoIsPreemptedOrForkedForgetsItsDrafts) {
  BlockManagerOptions blocks = one_group(8);
  blocks.prefix_cache = false;
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 4}, blocks);
  const RequestId low = f.submit(token_run(0, 7), 9, 1);
  f.step_without_tokens();
  f.scheduler.extend(low, Tokens{7}, Tokens{8, 9});
  f.step_without_tokens();
  ASSERT_EQ(f.result.ready[0].num_drafts, 2);
  const RequestId child = f.scheduler.fork(low);
  f.scheduler.validate();
  f.manager.validate();
  f.scheduler.extend(child, Tokens{8, 9, 10});
  f.submit(token_run(100, 26), 2, 0);
  f.step_without_tokens();
  EXPECT_GT(f.scheduler.stats().num_preemptions(), 0);
  for (const ReadyRequest& ready : f.result.ready) f.scheduler.extend(ready.id, 1);
  f.scheduler.extend(low, Tokens{8, 9, 10}, Tokens{11});
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(low).num_new_tokens, 9);
  EXPECT_EQ(f.finished.at(child).num_new_tokens, 9);
}

TEST(Speculation, AnAbandonedStepKeepsItsDrafts) {
  SchedulerFixture f({.max_tokens = 32, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 6), 9);
  f.step_without_tokens();
  f.scheduler.extend(id, Tokens{50}, Tokens{51, 52});
  f.scheduler.abandon(f.scheduler.schedule(f.manager));
  f.scheduler.validate();
  EXPECT_EQ(f.step().at(0).num_drafts, 2);
}

}  // namespace
}  // namespace quire
