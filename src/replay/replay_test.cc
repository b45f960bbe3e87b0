// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "replay/cache_plan.h"
#include "replay/ideal_cache.h"
#include "replay/trace_generator.h"

namespace quire::replay {
namespace {

using ::testing::HasSubstr;

Trace small_trace(std::int64_t num_requests = 300) {
  GeneratorOptions options{.num_requests = num_requests, .duration_s = 300};
  options.max_input = 20'000;
  return generate_trace(options);
}

CachePlan plan_for(const Workload& workload, int block_size, std::int64_t num_blocks = 0) {
  CachePlan plan{.block_size = block_size, .block_bytes = 1000, .num_blocks = num_blocks};
  if (num_blocks == 0) plan.num_blocks = blocks_for_all(workload, block_size);
  return plan;
}

ReplayReport run(const Workload& workload, const CachePlan& plan, const ReplayOptions& options = {},
                 const SchedulerOptions& scheduler = {}) {
  MemoryRunner runner(scheduler, manager_options(plan));
  return replay(workload, runner, options);
}

TEST(Workload, EqualIdsAreEqualTokens) {
  const Trace trace{{.input_length = 1000, .output_length = 3, .hash_ids = {5, 6}},
                    {.input_length = 1024, .output_length = 3, .hash_ids = {5, 7}},
                    {.input_length = 600, .output_length = 0, .hash_ids = {8, 6}}};
  const Workload workload(trace, {});
  std::vector<Token> tokens[3];
  for (std::int64_t i = 0; i < 3; ++i) {
    workload.write_prompt(i, tokens[i]);
    ASSERT_EQ(std::ssize(tokens[i]), workload.input_length(i));
    for (const Token token : tokens[i]) ASSERT_TRUE(token >= 0 && token < 1 << 24);
  }
  EXPECT_TRUE(std::equal(tokens[0].begin(), tokens[0].begin() + 512, tokens[1].begin()));
  EXPECT_NE(tokens[0][512], tokens[1][512]);
  EXPECT_NE(tokens[0][0], tokens[2][0]);
  EXPECT_TRUE(std::equal(tokens[2].begin() + 512, tokens[2].end(), tokens[0].begin() + 512));
  EXPECT_EQ(workload.output_token(1, 2), workload.output_token(1, 2));
  EXPECT_NE(workload.output_token(1, 2), workload.output_token(0, 2));
}

TEST(Workload, ScalesLengthsAndKeepsWhatIsShared) {
  const Trace trace = small_trace();
  for (const std::int64_t scale : {1, 2, 64, 128}) {
    const Workload workload(trace, {.scale = scale});
    const auto block_size = static_cast<int>(512 / scale);
    IdealCache ideal;
    std::int64_t num_hits = 0;
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < workload.size(); ++i) {
      const TraceRequest& request = trace[static_cast<std::size_t>(i)];
      EXPECT_EQ(workload.input_length(i), (request.input_length + scale - 1) / scale);
      workload.write_prompt(i, tokens);
      num_hits += ideal.add(Prompt(tokens, block_size));
    }
    const std::int64_t unscaled = measure(trace).num_ideal_hits;
    // A prompt that was cut inside its last block may fill it when rounded up.
    EXPECT_NEAR(static_cast<double>(num_hits), static_cast<double>(unscaled), 0.02 * unscaled);
  }
  for (const std::int64_t scale : {0, 3, 256, 1024}) {
    EXPECT_THROW(Workload(trace, {.scale = scale}), Error) << scale;
  }
  EXPECT_THROW(Workload(trace, {.time_scale = 0}), Error);
  EXPECT_THROW(Workload(trace, {.num_priorities = 0}), Error);
}

TEST(Workload, DrawsClassesAndMovesArrivals) {
  const Trace trace = small_trace();
  const Workload workload(trace, {.time_scale = 2, .num_priorities = 3});
  std::set<std::int32_t> classes;
  for (std::int64_t i = 0; i < workload.size(); ++i) {
    classes.insert(workload.priority(i));
    const auto ms = static_cast<double>(trace[static_cast<std::size_t>(i)].timestamp_ms);
    EXPECT_DOUBLE_EQ(workload.arrival_s(i), ms / 2000);
  }
  EXPECT_EQ(classes, (std::set<std::int32_t>{0, 1, 2}));
}

TEST(Replay, OneAfterAnotherWithoutEvictionsFindsAllThatCanBeFound) {
  const Trace trace = small_trace(100);
  const Workload workload(trace, {});
  const ReplayReport report =
      run(workload, plan_for(workload, 512), {.serial = true, .validate_interval = 100});
  const TraceStatistics stats = measure(trace);
  EXPECT_EQ(report.num_requests, 100);
  EXPECT_EQ(report.prompt_tokens, stats.prompt_tokens);
  EXPECT_EQ(report.output_tokens, stats.output_tokens);
  EXPECT_EQ(report.full_blocks, stats.num_full_blocks);
  EXPECT_EQ(report.hit_blocks, stats.num_ideal_hits);
  EXPECT_EQ(report.ideal_hit_blocks, stats.num_ideal_hits);
  EXPECT_EQ(report.blocks.num_evictions, 0);
  EXPECT_EQ(report.violations, 0);
  EXPECT_EQ(report.queue_s.quantiles.back(), 0);
  EXPECT_EQ(report.running.quantiles.back(), 1);
}

TEST(Replay, ASmallCacheEvictsAndPreemptsAndStaysSound) {
  const Workload workload(small_trace(50), {.time_scale = 60, .num_priorities = 3});
  const SchedulerOptions scheduler{.prefix = {.window = 8, .wait_for_shared = true}};
  const CachePlan plan = plan_for(workload, 32, 700);
  const ReplayReport report = run(workload, plan, {.validate_interval = 100}, scheduler);
  EXPECT_EQ(report.violations, 0) << testing::PrintToString(report.messages);
  EXPECT_GT(report.blocks.num_evictions, 0);
  EXPECT_GT(report.scheduler.num_preemptions(), 0);
  EXPECT_GT(report.hit_blocks, 0);
  EXPECT_LT(report.hit_blocks, report.ideal_hit_blocks);
  EXPECT_GT(report.queue_s.mean, 0);
  EXPECT_GT(report.in_use.quantiles.back(), 0.9);
  std::int64_t prefill = 0;
  std::int64_t decode = 0;
  std::int64_t num_steps = 0;
  for (const Bucket& bucket : report.series.buckets()) {
    prefill += bucket.prefill_tokens;
    decode += bucket.decode_tokens;
    num_steps += bucket.num_steps;
  }
  EXPECT_EQ(prefill + decode, report.computed_tokens);
  EXPECT_EQ(num_steps, report.num_steps);
  // The same again, step by step.
  const ReplayReport again = run(workload, plan, {.validate_interval = 0}, scheduler);
  EXPECT_EQ(again.num_steps, report.num_steps);
  EXPECT_EQ(again.hit_blocks, report.hit_blocks);
  EXPECT_EQ(again.trace_seconds, report.trace_seconds);
  EXPECT_EQ(again.ttft_s.quantiles, report.ttft_s.quantiles);
  EXPECT_EQ(again.scheduler.num_preemptions(), report.scheduler.num_preemptions());
}

// A prompt of 10 tokens, 2 of an answer: both clocks by hand.
TEST(Replay, ItsClockIsTheCostOfTheSteps) {
  const Workload workload({{.timestamp_ms = 2000, .input_length = 10, .output_length = 2},
                           {.timestamp_ms = 2500, .input_length = 4, .output_length = 1}},
                          {});
  ReplayOptions options;
  options.cost = {.step_s = 1, .token_s = 0.1, .key_s = 0.01};
  const ReplayReport report = run(workload, plan_for(workload, 4), options);
  // Step 1 at 2 s: ten tokens, 55 pairs. Step 2: the second prompt, which came at 2.5 s, and the
  // next token of the first, which sees 11 keys.
  const double first = 1 + 1 + 0.55;
  const double second = 1 + 0.5 + 0.01 * (11 + 4 * 5 / 2.0);
  EXPECT_EQ(report.num_steps, 2);
  EXPECT_DOUBLE_EQ(report.trace_seconds, 2 + first + second);
  EXPECT_DOUBLE_EQ(report.ttft_s.quantiles.back(), 2 + first + second - 2.5);
  EXPECT_DOUBLE_EQ(report.ttft_s.quantiles.front(), first);
  EXPECT_NEAR(report.queue_s.quantiles.back(), 2 + first - 2.5, 1e-12);
  EXPECT_DOUBLE_EQ(report.token_s.mean, second);
  EXPECT_EQ(report.ttft_steps.quantiles.back(), 1);
  EXPECT_EQ(report.token_steps.mean, 1);
}

TEST(Replay, TakesPromptsWithoutAnswers) {
  const Workload workload({{.input_length = 10, .output_length = 0}}, {});
  const ReplayReport report = run(workload, plan_for(workload, 4));
  EXPECT_EQ(report.num_steps, 1);
  EXPECT_EQ(report.ttft_s.count, 1);
  EXPECT_EQ(report.token_s.count, 0);
  EXPECT_EQ(report.violations, 0);
}

TEST(Replay, NamesTheRequestThatDoesNotFit) {
  const Workload workload(
      {{.input_length = 10, .output_length = 2}, {.input_length = 90, .output_length = 7}}, {});
  const auto message = [&](std::int64_t num_blocks) -> std::string {
    try {
      require_all_fit(workload, {.block_size = 8, .block_bytes = 1000, .num_blocks = num_blocks});
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  // The last token of an answer has no K and V: 96 of them fill 12 blocks.
  EXPECT_EQ(message(11),
            "the cache is too small for request 2 of the trace, its largest: 90 + 7 tokens take 12 "
            "blocks of 8, so it needs 12 blocks, the watermark included, or 13000 bytes, the null "
            "block included; it has 11 blocks");
  EXPECT_THAT(message(0), HasSubstr("13000 bytes, the null block included; it has 0 blocks"));
  EXPECT_EQ(message(12), "accepted");
  EXPECT_EQ(run(workload, plan_for(workload, 8, 12)).num_refused, 0);
  EXPECT_EQ(blocks_in(13'000, 1000), 12);
  EXPECT_EQ(blocks_in(1999, 1000), 0);
  EXPECT_EQ(blocks_in(1, 1000), 0);
}

TEST(Replay, RefusesWhatDoesNotFitSaysWhyAndGoesOn) {
  const Workload workload({{.input_length = 10, .output_length = 2},
                           {.input_length = 90, .output_length = 10},
                           {.input_length = 12, .output_length = 1}},
                          {});
  SchedulerOptions scheduler;
  scheduler.preemption.token_bytes = 100;
  const ReplayReport report = run(workload, plan_for(workload, 8, 12), {}, scheduler);
  EXPECT_EQ(report.num_refused, 1);
  ASSERT_EQ(report.refused.size(), 1U);
  EXPECT_EQ(to_string(report.refused[0]),
            "request 2 of the trace, 90 + 10 tokens: too large: needs 99 tokens, 9900 bytes of K "
            "and V; alone in the cache it would find 96 tokens, 9600 bytes");
  EXPECT_EQ(report.ttft_s.count, 2);
  EXPECT_EQ(report.violations, 0);
}

TEST(Replay, GoesOnHoweverManyAreRefused) {
  const Workload workload(Trace(1100, {.input_length = 90, .output_length = 1}), {});
  const ReplayReport report = run(workload, plan_for(workload, 8, 2), {.serial = true});
  EXPECT_EQ(report.num_refused, 1100);
  EXPECT_EQ(report.refused.size(), 100U);
  EXPECT_EQ(report.ttft_s.count, 0);
}

TEST(Replay, SizesThatDoNotFitIn64BitsAreErrors) {
  const CachePlan plan{
      .block_size = 8, .block_bytes = std::int64_t{1} << 40, .num_blocks = 1 << 30};
  try {
    static_cast<void>(plan.size_bytes());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the number of bytes of the cache does not fit in 64 bits: 1073741825 * "
                 "1099511627776");
  }
}

TEST(Replay, ProgressAdvancesWithTheTokensOfOneRequest) {
  const Workload workload({{.input_length = 1000, .output_length = 50}}, {});
  std::vector<std::int64_t> tokens;
  ReplayOptions options;
  options.progress = [&](const ReplayProgress& state) {
    EXPECT_EQ(state.total_tokens, 1050);
    EXPECT_EQ(state.num_done, state.num_tokens == 1050 ? 1 : 0);
    tokens.push_back(state.num_tokens);
  };
  run(workload, plan_for(workload, 8), options, {.max_tokens = 100, .max_sequences = 1});
  ASSERT_EQ(tokens.size(), 10 + 49U);  // the last token is not computed
  EXPECT_EQ(tokens[0], 100);
  EXPECT_EQ(tokens[9], 1000);
  EXPECT_EQ(tokens.back(), 1050);
  EXPECT_TRUE(std::ranges::is_sorted(tokens, std::less_equal<>()));
}

// Preempted requests compute again what they had: that is no progress.
TEST(Replay, ProgressEndsAtItsTotal) {
  const Workload workload(small_trace(40), {.time_scale = 60, .num_priorities = 3});
  ReplayProgress last;
  ReplayOptions options;
  options.progress = [&](const ReplayProgress& state) {
    EXPECT_GE(state.num_tokens, last.num_tokens);
    last = state;
  };
  const ReplayReport report = run(workload, plan_for(workload, 64, 340), options);
  EXPECT_GT(report.scheduler.num_preemptions(), 0);
  EXPECT_EQ(last.num_tokens, report.prompt_tokens + report.output_tokens);
  EXPECT_EQ(last.num_tokens, last.total_tokens);
  EXPECT_EQ(last.num_done, 40);
}

// A sequence that nobody frees.
class LeakingRunner final : public MemoryRunner {
 public:
  explicit LeakingRunner(const BlockManagerOptions& blocks)
      : MemoryRunner(SchedulerOptions{}, blocks) {}

  StepResult step(const BatchObserver& observe) override {
    if (!has_leaked_) {
      const std::vector<Token> tokens{1, 2, 3};
      const auto admission = block_manager_.admit(Prompt(tokens, 4));
      has_leaked_ = admission && block_manager_.append(admission->id, 3);
    }
    return MemoryRunner::step(observe);
  }

 private:
  bool has_leaked_ = false;
};

TEST(Replay, ReportsBlocksThatAreNeverFreed) {
  const Workload workload({{.input_length = 10, .output_length = 2}}, {});
  LeakingRunner runner(manager_options(plan_for(workload, 4, 20)));
  const ReplayReport report = replay(workload, runner, {});
  EXPECT_EQ(report.violations, 1);
  EXPECT_THAT(report.messages, ::testing::ElementsAre(HasSubstr("1 blocks and 0 host blocks")));
}

TEST(TimeSeries, DoublesItsBucketsAndLosesNothing) {
  TimeSeries series(4);
  for (int i = 0; i < 1000; ++i) {
    Bucket step;
    step.decode_tokens = i;
    step.seconds = 0.5;
    series.add(i * 0.5, step);
  }
  EXPECT_LE(series.buckets().size(), 4U);
  EXPECT_GE(series.width_s() * 4, 499.5);
  std::int64_t sum = 0;
  double seconds = 0;
  for (const Bucket& bucket : series.buckets()) {
    sum += bucket.decode_tokens;
    seconds += bucket.seconds;
  }
  EXPECT_EQ(sum, 999 * 1000 / 2);
  EXPECT_DOUBLE_EQ(seconds, 500);
}

TEST(BlockLifetimes, CountsFromStoredToRemoved) {
  const Trace trace = small_trace(60);
  const Workload workload(trace, {});
  BlockLifetimes lifetimes;
  const CachePlan plan = plan_for(workload, 512, 60);
  BlockManagerOptions blocks = manager_options(plan);
  blocks.events = &lifetimes;
  MemoryRunner runner({}, blocks);
  const ReplayReport report = replay(workload, runner, {.lifetimes = &lifetimes});
  EXPECT_GT(report.evicted_histogram.total(), 0);
  EXPECT_GT(report.alive_histogram.total(), 0);
  EXPECT_EQ(report.evicted_histogram.total() + report.alive_histogram.total(),
            report.blocks.num_stored - report.blocks.num_duplicates);
  LogHistogram histogram;
  for (const double value : {0.0, 1e-4, 0.05, 1.0, 2.0, 1e12}) histogram.add(value);
  EXPECT_EQ(histogram.total(), 6);
  EXPECT_EQ(histogram.counts().front(), 2);
  EXPECT_EQ(histogram.counts().back(), 1);
  EXPECT_DOUBLE_EQ(LogHistogram::lower_bound(20), 1.0);
  EXPECT_EQ(histogram.counts()[20], 1);
}

}  // namespace
}  // namespace quire::replay
