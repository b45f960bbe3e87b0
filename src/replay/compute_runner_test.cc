// SPDX-License-Identifier: Apache-2.0
#include "replay/compute_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/mutant_backend.h"
#include "quire/error.h"
#include "quire/registry.h"
#include "replay/cache_plan.h"
#include "replay/replay.h"
#include "replay/trace_generator.h"

namespace quire::replay {
namespace {

using conformance::Bug;
using conformance::MutantBackend;

Workload small_workload(std::int64_t num_requests) {
  GeneratorOptions options{.num_requests = num_requests, .duration_s = 20};
  options.max_input = 12'000;
  options.turn_gap_s = QuantileCurve::parse("gap", "0:1,100:6");
  options.output_tokens = QuantileCurve::parse("output", "0:640,100:4000");
  options.first_tokens = QuantileCurve::parse("first", "0:100,100:4000");
  options.mean_turns = 3;
  return {generate_trace(options), {.scale = 64}};
}

ReplayReport compute(std::unique_ptr<AttentionBackend> backend, const Workload& workload,
                     const ModelShape& model, std::int64_t num_blocks,
                     std::int64_t num_host_blocks = 0) {
  const CachePlan plan{.block_size = 8,
                       .block_bytes = stored_block_bytes(*backend, model, 8),
                       .num_blocks = num_blocks,
                       .num_host_blocks = num_host_blocks};
  require_all_fit(workload, plan);
  ComputeOptions options{.model = model, .blocks = manager_options(plan)};
  options.scheduler.max_tokens = 64;
  options.scheduler.max_sequences = 16;
  options.scheduler.max_length = workload.max_length();
  if (num_host_blocks > 0) {
    options.scheduler.preemption = {.allow_partial = false, .byte_seconds = 0};
  }
  ComputeRunner runner(std::move(backend), options);
  return replay(workload, runner, {.validate_interval = 8});
}

constexpr ModelShape kSmallModel{.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};

TEST(ComputeRunner, EveryRowThatIsLookedAtIsRight) {
  const Workload workload = small_workload(30);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    ModelShape model = kSmallModel;
    model.dtype = dtype;
    const ReplayReport report =
        compute(make_backend("cpu", {.num_threads = 2, .isa = {}}), workload, model, 100);
    EXPECT_EQ(report.violations, 0) << testing::PrintToString(report.messages);
    EXPECT_EQ(report.verification.num_rows, 4 * report.num_steps);
    EXPECT_GT(report.verification.max_error, 0);
    EXPECT_GT(report.hit_blocks, 0);
    EXPECT_GT(report.scheduler.num_preemptions(), 0);
    EXPECT_GT(report.computing_seconds, 0);
  }
}

TEST(ComputeRunner, SwapsGiveTheSameRows) {
  const ReplayReport report = compute(make_backend("cpu", {.num_threads = 2, .isa = {}}),
                                      small_workload(60), kSmallModel, 100, 200);
  EXPECT_EQ(report.violations, 0) << testing::PrintToString(report.messages);
  EXPECT_GT(report.scheduler.num_swaps, 0);
  EXPECT_GT(report.blocks.num_swapped_in, 0);
}

// The steps do not depend on how fast anything is computed.
TEST(ComputeRunner, SchedulesAsTheMemoryRunnerDoes) {
  const Workload workload = small_workload(40);
  const ReplayReport computed = compute(make_backend("cpu"), workload, kSmallModel, 100);
  SchedulerOptions scheduler;
  scheduler.max_tokens = 64;
  scheduler.max_sequences = 16;
  scheduler.max_length = workload.max_length();
  const auto backend = make_backend("cpu");
  scheduler.preemption.token_bytes = stored_block_bytes(*backend, kSmallModel, 8) / 8;
  MemoryRunner runner(scheduler, manager_options({.block_size = 8, .num_blocks = 100}));
  const ReplayReport planned = replay(workload, runner, {});
  EXPECT_EQ(planned.num_steps, computed.num_steps);
  EXPECT_EQ(planned.hit_blocks, computed.hit_blocks);
  EXPECT_EQ(planned.scheduler.num_preemptions(), computed.scheduler.num_preemptions());
  EXPECT_EQ(planned.trace_seconds, computed.trace_seconds);
}

TEST(ComputeRunner, FindsWhatABackendDoesWrong) {
  const Workload workload = small_workload(5);
  const ReplayReport right =
      compute(std::make_unique<MutantBackend>(Bug::kNone), workload, kSmallModel, 200);
  EXPECT_EQ(right.violations, 0) << testing::PrintToString(right.messages);
  for (const Bug bug : {Bug::kCausalStrict, Bug::kTableOfPreviousSequence, Bug::kHeadModulo,
                        Bug::kStaleBlock, Bug::kReadsPastLength, Bug::kNoRescale}) {
    const ReplayReport report =
        compute(std::make_unique<MutantBackend>(bug), workload, kSmallModel, 200);
    EXPECT_GT(report.violations, 0) << bug_name(bug);
    EXPECT_FALSE(report.messages.empty()) << bug_name(bug);
  }
}

TEST(RowVerifier, RefusesARowThatIsNearlyRight) {
  const AttentionSpec spec = model_spec(kSmallModel, 8);
  TokenChain chain;
  chain.extend(std::vector<Token>{7});
  // One key: the output is its V.
  std::vector<float> row(static_cast<std::size_t>(spec.num_q_heads * spec.value_dim));
  std::vector<float> v(static_cast<std::size_t>(spec.num_kv_heads * spec.value_dim));
  make_row(chain.digest(0), 1, QkvTensor::kV, v);
  for (int head = 0; head < spec.num_q_heads; ++head) {
    std::memcpy(row.data() + head * spec.value_dim,
                v.data() + head / spec.head_group() * spec.value_dim,
                sizeof(float) * static_cast<std::size_t>(spec.value_dim));
  }
  RowVerifier verifier(spec, 0.25F);
  const RowPlace place{.layer = 1, .request = 3, .position = 0};
  verifier.verify(place, chain, row.data());
  EXPECT_EQ(verifier.result().num_violations, 0);
  row[17] += 1e-4F;
  verifier.verify(place, chain, row.data());
  EXPECT_EQ(verifier.result().num_violations, 1);
  row[17] = NAN;
  verifier.verify(place, chain, row.data());
  EXPECT_EQ(verifier.result().num_violations, 2);
  EXPECT_EQ(verifier.result().num_rows, 3);
  EXPECT_NEAR(verifier.result().max_error, 1e-4, 1e-6);
  EXPECT_THAT(verifier.result().messages,
              testing::ElementsAre(testing::HasSubstr("request 3 position 0 layer 1: error"),
                                   testing::HasSubstr("not a finite number")));
}

TEST(TokenChain, DependsOnEverythingBefore) {
  TokenChain a;
  a.extend(std::vector<Token>{1, 2, 3});
  TokenChain b;
  b.extend(std::vector<Token>{1});
  b.extend(std::vector<Token>{2, 3});
  TokenChain c;
  c.extend(std::vector<Token>{9, 2, 3});
  EXPECT_EQ(a.digest(2), b.digest(2));
  EXPECT_NE(a.digest(2), c.digest(2));
  EXPECT_NE(a.digest(1), a.digest(2));
}

}  // namespace
}  // namespace quire::replay
