// SPDX-License-Identifier: Apache-2.0
// Batches, order, ends and misuse. Preemption has its own tests.
#include "quire/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/error.h"
#include "scheduler/scheduler_fixture.h"

namespace quire {
namespace {

using testing::one_group;
using testing::SchedulerFixture;
using testing::token_run;

TEST(Scheduler, PrefillsInChunksBesideDecodes) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 4}, one_group(64));
  const RequestId first = f.submit(token_run(0, 3), 6);
  f.step();
  const RequestId second = f.submit(token_run(100, 20), 2);
  f.step();
  EXPECT_EQ(f.num_tokens_of(first, 1), 1);
  EXPECT_EQ(f.num_tokens_of(second, 1), 7);  // the budget less the decode
  f.step();
  EXPECT_EQ(f.num_tokens_of(first, 2), 1);
  EXPECT_EQ(f.num_tokens_of(second, 2), 7);
  f.step();
  EXPECT_EQ(f.num_tokens_of(second, 3), 6);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(first).num_new_tokens, 6);
  EXPECT_EQ(f.finished.at(second).num_new_tokens, 2);
}

TEST(Scheduler, AHighPrefillLeavesTokensForLowDecodes) {
  SchedulerFixture f({.max_tokens = 4, .max_sequences = 4}, one_group(64));
  const RequestId low = f.submit(token_run(0, 2), 20, 1);
  f.step();
  const RequestId high = f.submit(token_run(100, 30), 1, 0);
  for (std::size_t i = 1; i < 5; ++i) {
    f.step();
    EXPECT_EQ(f.num_tokens_of(low, i), 1);
    EXPECT_EQ(f.num_tokens_of(high, i), 3);
  }
}

TEST(Scheduler, MaxChunkBoundsOneRequest) {
  SchedulerFixture f({.max_tokens = 16, .max_sequences = 4, .max_chunk = 5}, one_group(64));
  f.submit(token_run(0, 12), 1);
  f.submit(token_run(50, 12), 1);
  f.submit(token_run(90, 12), 1);
  EXPECT_EQ(f.step().size(), 3U);
  EXPECT_TRUE(f.run());
}

TEST(Scheduler, TheBatchHoldsTokensPositionsTablesAndSlots) {
  const BlockManagerOptions blocks = one_group(8);
  BlockManager manager(blocks);
  Scheduler scheduler({.max_tokens = 16, .max_sequences = 2}, blocks);
  const RequestId id =
      scheduler.submit({.prompt = Prompt(token_run(7, 6), 4), .max_new_tokens = 3});
  const ScheduledBatch& prefill = scheduler.schedule(manager);
  EXPECT_EQ(std::vector<Token>(prefill.tokens().begin(), prefill.tokens().end()), token_run(7, 6));
  EXPECT_EQ(std::vector<std::int32_t>(prefill.positions().begin(), prefill.positions().end()),
            token_run(0, 6));
  const BatchView view = prefill.view(0);
  ASSERT_EQ(view.num_sequences(), 1);
  EXPECT_EQ(view.queries.ends[0], 6);
  EXPECT_EQ(view.kv.lens[0], 6);
  ASSERT_EQ(view.kv.blocks.indices.size, 2);
  ASSERT_EQ(view.kv.slots.size, 6);
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(view.kv.slots[i], view.kv.blocks.indices[i / 4] * 4 + i % 4);
  }
  EXPECT_THROW(prefill.view(1), Error);
  const StepResult result = scheduler.commit(prefill);
  ASSERT_EQ(result.ready.size(), 1U);
  EXPECT_EQ(result.ready[0].id, id);
  EXPECT_EQ(result.ready[0].row, 5);

  scheduler.extend(id, 42);
  const ScheduledBatch& decode = scheduler.schedule(manager);
  ASSERT_EQ(decode.num_tokens(), 1);
  EXPECT_EQ(decode.tokens()[0], 42);
  EXPECT_EQ(decode.positions()[0], 6);
  EXPECT_TRUE(decode.sequences()[0].is_last_chunk);
  scheduler.commit(decode);
}

TEST(Scheduler, PriorityThenArrival) {
  SchedulerFixture f({.max_tokens = 4, .max_sequences = 1}, one_group(64));
  const RequestId running = f.submit(token_run(0, 2), 1);
  f.step();
  const RequestId low = f.submit(token_run(10, 2), 1, 2);
  const RequestId middle = f.submit(token_run(20, 2), 1, 1);
  const RequestId second = f.submit(token_run(30, 2), 1, 1);
  const RequestId high = f.submit(token_run(40, 2), 1, -1);
  EXPECT_TRUE(f.run());
  std::vector<RequestId> order;
  for (const auto& step : f.history) {
    for (const ScheduledSequence& sequence : step) order.push_back(sequence.request);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{running, high, middle, second, low}));
}

// A stream of urgent requests, one per step, on a scheduler that runs one at a time.
std::int64_t steps_until_served(int aging_steps, std::int32_t priority, int max_steps) {
  SchedulerFixture f({.max_tokens = 4, .max_sequences = 1, .aging_steps = aging_steps},
                     one_group(64));
  f.submit(token_run(0, 2), 1);
  const RequestId patient = f.submit(token_run(0, 2), 1, priority);
  for (int i = 0; i < max_steps; ++i) {
    f.submit(token_run(0, 2), 1);
    f.step();
    if (f.num_tokens_of(patient, static_cast<std::size_t>(i)) > 0) return i + 1;
  }
  return -1;
}

TEST(Scheduler, AWaitingRequestRisesByOneClassEveryNSteps) {
  EXPECT_EQ(steps_until_served(0, 1, 500), -1);  // without aging it starves
  const std::int64_t one = steps_until_served(10, 1, 500);
  EXPECT_GT(one, 10);
  EXPECT_LE(one, 12 + 10);  // it passes those that come ten steps later; one waits from before
  const std::int64_t three = steps_until_served(10, 3, 500);
  EXPECT_EQ(three, one + 20);
}

TEST(Scheduler, AdmitsOnlyAboveTheWatermark) {
  BlockManagerOptions blocks = one_group(10);
  blocks.pools[0].watermark_blocks = 4;
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 8}, blocks);
  f.submit(token_run(0, 12), 4);
  f.submit(token_run(100, 12), 4);
  f.step();
  EXPECT_EQ(f.history[0].size(), 1U);  // 10 - 4 blocks: the second would leave 3 + 1
  EXPECT_TRUE(f.run());
}

TEST(Scheduler, AdmissionCountsWhatRunningRequestsHaveStillToCompute) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 4, .max_chunk = 4}, one_group(10));
  const RequestId large = f.submit(token_run(0, 32), 1);  // 8 blocks, 4 tokens in a step
  const RequestId other = f.submit(token_run(100, 12), 1);
  f.step();
  EXPECT_EQ(f.num_tokens_of(large, 0), 4);
  EXPECT_EQ(f.num_tokens_of(other, 0), 0);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.scheduler.stats().num_preemptions(), 0);
}

TEST(Scheduler, WhatNeverFitsEndsAtOnce) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 2, .max_length = 30}, one_group(6));
  const RequestId too_many_blocks = f.submit(token_run(0, 20), 6);
  const RequestId too_long = f.submit(token_run(0, 20), 11);
  const RequestId fits = f.submit(token_run(0, 20), 5);  // the last token is never stored
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.reason(too_many_blocks), FinishReason::kTooLarge);
  EXPECT_EQ(f.reason(too_long), FinishReason::kTooLarge);
  EXPECT_EQ(
      f.finished.at(too_many_blocks).detail,
      "needs 25 tokens, 3276800 bytes of K and V; alone in the cache it would find 24 tokens, "
      "3145728 bytes");
  EXPECT_EQ(f.finished.at(too_long).detail,
            "may come to 31 tokens, 4063232 bytes of K and V; the limit is 30 tokens, 3932160 "
            "bytes");
  EXPECT_EQ(f.finished.at(fits).detail, "");
  EXPECT_EQ(f.reason(fits), FinishReason::kLength);
}

TEST(Scheduler, MaxTotalLengthBoundsWhatRuns) {
  SchedulerFixture f({.max_tokens = 64, .max_sequences = 8, .max_total_length = 25}, one_group(64));
  for (int i = 0; i < 4; ++i) f.submit(token_run(100 * i, 8), 3);
  EXPECT_EQ(f.step().size(), 2U);
  EXPECT_TRUE(f.run());
}

TEST(Scheduler, APromptAloneIsComputedAndEnds) {
  SchedulerFixture f({.max_tokens = 4, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 10), 0);
  EXPECT_TRUE(f.run(3));
  EXPECT_EQ(f.reason(id), FinishReason::kLength);
}

TEST(Scheduler, CancelEndsARequestInAnyState) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 1}, one_group(16));
  const RequestId running = f.submit(token_run(0, 20), 5);
  const RequestId waiting = f.submit(token_run(100, 4), 5);
  f.step();
  const RequestId unseen = f.submit(token_run(200, 4), 5);
  for (const RequestId id : {running, waiting, unseen}) f.scheduler.cancel(id);
  f.step();
  EXPECT_EQ(f.scheduler.num_unfinished(), 0);
  for (const RequestId id : {running, waiting, unseen}) {
    EXPECT_EQ(f.reason(id), FinishReason::kCancelled);
  }
  f.scheduler.cancel(running);  // it has ended: no effect
  EXPECT_TRUE(f.step().empty());
  EXPECT_EQ(f.manager.stats().num_sequences, 0);
}

TEST(Scheduler, DeadlinesEndRequests) {
  std::chrono::nanoseconds now{0};
  SchedulerOptions options{.max_tokens = 8, .max_sequences = 2};
  options.clock = [&now] { return now; };
  SchedulerFixture f(options, one_group(16));
  const auto submit = [&](std::int64_t deadline) {
    return f.scheduler.submit({.prompt = Prompt(token_run(0, 4), 4),
                               .max_new_tokens = 3,
                               .deadline = std::chrono::nanoseconds(deadline)});
  };
  const RequestId in_time = submit(100);
  const RequestId late = submit(20);
  const RequestId waiting = submit(20);
  f.step();
  now = std::chrono::nanoseconds(19);
  f.step();
  EXPECT_EQ(f.reason(late), std::nullopt);
  now = std::chrono::nanoseconds(20);
  f.step();
  EXPECT_EQ(f.reason(late), FinishReason::kDeadline);
  EXPECT_EQ(f.reason(waiting), FinishReason::kDeadline);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.reason(in_time), FinishReason::kLength);
}

TEST(Scheduler, FinishStopsARequest) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 2}, one_group(16));
  const RequestId id = f.submit(token_run(0, 4), 50);
  f.step();
  f.step();
  f.scheduler.finish(id);
  f.step();
  EXPECT_EQ(f.reason(id), FinishReason::kStopped);
  EXPECT_EQ(f.finished.at(id).num_new_tokens, 2);
}

TEST(Scheduler, WhoHasNoTokenYetDoesNotRunAndBlocksNobody) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 2}, one_group(16));
  const RequestId silent = f.submit(token_run(0, 4), 5);
  f.step_without_tokens();
  f.submit(token_run(100, 4), 2);
  f.step_without_tokens();
  EXPECT_EQ(f.num_tokens_of(silent, 1), 0);
  EXPECT_EQ(f.history[1].size(), 1U);
}

TEST(Scheduler, ForksShareBlocksAndGoTheirOwnWays) {
  SchedulerFixture f({.max_tokens = 16, .max_sequences = 4}, one_group(16));
  const RequestId first = f.submit(token_run(0, 6), 3);
  f.step_without_tokens();
  const RequestId second = f.scheduler.fork(first);
  EXPECT_GT(second, first);
  f.scheduler.extend(first, 1);
  f.scheduler.extend(second, 2);
  const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
  ASSERT_EQ(batch.sequences().size(), 2U);
  ASSERT_EQ(batch.copies().size(), 1U);  // the first of the two to write gets a copy
  EXPECT_EQ(batch.copies()[0].groups[0].on_device.size(), 1U);
  EXPECT_EQ(batch.view(0).kv.blocks.indices[0], batch.view(0).kv.blocks.indices[2]);
  EXPECT_NE(batch.view(0).kv.blocks.indices[1], batch.view(0).kv.blocks.indices[3]);
  for (const ReadyRequest& ready : f.scheduler.commit(batch).ready) f.scheduler.extend(ready.id, 9);
  EXPECT_EQ(f.scheduler.new_tokens(first)[0], 1);
  EXPECT_EQ(f.scheduler.new_tokens(second)[0], 2);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(second).num_new_tokens, 3);
}

TEST(Scheduler, ForksBeyondTheLimitWaitForTheirTurn) {
  SchedulerFixture f({.max_tokens = 16, .max_sequences = 2}, one_group(32));
  const RequestId first = f.submit(token_run(0, 6), 3);
  f.step_without_tokens();
  std::vector<RequestId> all{first};
  for (int i = 0; i < 3; ++i) all.push_back(f.scheduler.fork(first));
  EXPECT_EQ(f.scheduler.stats().num_paused, 2);
  f.scheduler.validate();
  for (const RequestId id : all) f.scheduler.extend(id, static_cast<Token>(id.value));
  EXPECT_TRUE(f.run());
  for (const RequestId id : all) EXPECT_EQ(f.finished.at(id).num_new_tokens, 3);
}

TEST(Scheduler, AnAbandonedBatchIsScheduledAgain) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 2}, one_group(16));
  f.submit(token_run(0, 6), 2);
  const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
  EXPECT_EQ(batch.num_tokens(), 6);
  f.scheduler.abandon(batch);
  f.scheduler.validate();
  f.manager.validate();
  EXPECT_EQ(f.step().at(0).num_tokens, 6);
  EXPECT_TRUE(f.run());
}

// What has not run of the copies comes first in the next batch, in its order.
TEST(Scheduler, CopiesOfAnAbandonedBatchAreKeptUntilTheyHaveRun) {
  SchedulerFixture f({.max_tokens = 16, .max_sequences = 4}, one_group(16));
  const RequestId first = f.submit(token_run(0, 6), 3);
  f.step_without_tokens();
  const RequestId second = f.scheduler.fork(first);
  f.scheduler.extend(first, 1);
  f.scheduler.extend(second, 2);
  const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
  ASSERT_EQ(batch.copies().size(), 1U);
  const BlockCopy copy = batch.copies()[0].groups[0].on_device[0];
  EXPECT_THROW(f.scheduler.abandon(batch, 2), Error);
  f.scheduler.abandon(batch, 0);
  EXPECT_EQ(&f.scheduler.schedule(f.manager), &batch);
  ASSERT_EQ(batch.copies().size(), 1U);
  EXPECT_EQ(batch.copies()[0].groups[0].on_device[0].src, copy.src);
  EXPECT_EQ(batch.copies()[0].groups[0].on_device[0].dst, copy.dst);
  f.scheduler.abandon(batch);
  EXPECT_TRUE(f.scheduler.schedule(f.manager).copies().empty());
  f.scheduler.commit(batch);
}

TEST(Scheduler, PrefixOrderTakesTheCachedFirstWithinAClass) {
  const auto served_second = [](int window) {
    SchedulerFixture f({.max_tokens = 16, .max_sequences = 1, .prefix = {.window = window}},
                       one_group(32));
    f.submit(token_run(0, 12), 1);
    const RequestId cold = f.submit(token_run(100, 12), 1);
    const RequestId warm = f.submit(token_run(0, 12), 1);
    f.step();
    const RequestId served = f.step().at(0).request;
    EXPECT_TRUE(served == cold || served == warm);
    EXPECT_TRUE(f.run());
    return served == warm;
  };
  EXPECT_FALSE(served_second(1));
  EXPECT_TRUE(served_second(4));
}

TEST(Scheduler, WhoCanShareABlockUnderWayWaitsForIt) {
  const auto num_computed = [](bool wait) {
    SchedulerFixture f({.max_tokens = 64, .max_sequences = 8, .prefix = {.wait_for_shared = wait}},
                       one_group(64));
    for (int i = 0; i < 4; ++i) {
      std::vector<Token> tokens = token_run(0, 12);
      tokens.push_back(100 + i);
      f.submit(tokens, 1);
    }
    EXPECT_TRUE(f.run());
    return f.scheduler.stats().num_tokens;
  };
  EXPECT_EQ(num_computed(false), 4 * 13);
  EXPECT_EQ(num_computed(true), 13 + 3);
}

TEST(Scheduler, EqualCallsGiveEqualBatches) {
  const auto play = [] {
    BlockManagerOptions blocks = one_group(12);
    blocks.pools[0].num_host_blocks = 8;
    SchedulerFixture f({.max_tokens = 12, .max_sequences = 6}, blocks);
    std::string text;
    for (int i = 0; i < 60; ++i) {
      if (i % 3 == 0) f.submit(token_run(i % 9, 5 + i % 7), 1 + i % 5, i % 3);
      for (const ScheduledSequence& s : f.step()) {
        text += std::to_string(s.request.value) + ":" + std::to_string(s.first_position) + "+" +
                std::to_string(s.num_tokens) + " ";
      }
      text += "\n";
    }
    return text;
  };
  EXPECT_EQ(play(), play());
}

TEST(Scheduler, MisuseIsRefusedAndNamesTheRequest) {
  SchedulerFixture f({.max_tokens = 8, .max_sequences = 2}, one_group(16));
  EXPECT_THROW(f.scheduler.submit({}), Error);
  EXPECT_THROW(f.scheduler.submit({.prompt = Prompt(token_run(0, 4), 8)}), Error);
  EXPECT_THROW(f.scheduler.submit({.prompt = Prompt(token_run(0, 4), 4), .max_new_tokens = -1}),
               Error);
  EXPECT_THROW(f.scheduler.submit({.prompt = Prompt(token_run(0, 4), 4), .num_cross_tokens = 1}),
               Error);
  EXPECT_THROW(f.scheduler.cancel({99}), Error);
  const RequestId id = f.submit(token_run(0, 12), 2);
  EXPECT_THROW(f.scheduler.extend(id, 1), Error);  // no step has seen it
  f.step();
  EXPECT_THROW(f.scheduler.extend(id, 1), Error);  // its prompt is not computed yet
  f.step_without_tokens();
  const std::vector<Token> three(3);
  EXPECT_THROW(f.scheduler.extend(id, three), Error);
  EXPECT_THROW(f.scheduler.extend(id, std::span<const Token>()), Error);
  f.scheduler.extend(id, 1);
  const ScheduledBatch& batch = f.scheduler.schedule(f.manager);
  EXPECT_THROW(f.scheduler.schedule(f.manager), Error);
  EXPECT_THROW(f.scheduler.finish(id), Error);
  EXPECT_THROW(f.scheduler.fork(id), Error);
  f.scheduler.commit(batch);
  EXPECT_THROW(f.scheduler.commit(batch), Error);
  EXPECT_THROW(f.scheduler.abandon(batch), Error);
  f.scheduler.finish(id);
  try {
    f.scheduler.finish(id);
    FAIL() << "a request that has ended was found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("request 1 "), std::string::npos) << error.what();
  }
  BlockManager other(one_group(4));
  EXPECT_THROW(f.scheduler.schedule(other), Error);
}

TEST(Scheduler, OptionsAreChecked) {
  const BlockManagerOptions blocks = one_group(4);
  EXPECT_THROW(Scheduler({.max_tokens = 0}, blocks), Error);
  EXPECT_THROW(Scheduler({.max_tokens = 4, .max_sequences = 5}, blocks), Error);
  EXPECT_THROW(Scheduler({.max_chunk = -1}, blocks), Error);
  EXPECT_THROW(Scheduler({.aging_steps = -1}, blocks), Error);
  EXPECT_THROW(Scheduler({.prefix = {.window = 0}}, blocks), Error);
  EXPECT_THROW(Scheduler({.preemption = {.token_seconds = -1}}, blocks), Error);
}

}  // namespace
}  // namespace quire
