// SPDX-License-Identifier: Apache-2.0
// The whole engine computes for every request what plain attention over that request alone gives,
// whatever is scheduled, shared, copied, swapped or computed again in between.
#include "quire/engine.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine_fixture.h"
#include "layout/kv_offset.h"
#include "quire/error.h"

namespace quire {
namespace {

using testing::add_cross_group;
using testing::add_windowed_group;
using testing::EngineFixture;
using testing::toy_options;
using testing::toy_spec;

std::vector<Token> tokens_of(std::int64_t seed, std::int64_t count) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>((seed * 7919 + i * 104729) % 89));
  }
  return tokens;
}

class EngineOn : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr PreemptionOptions kRecompute{.allow_partial = false, .allow_swap = false};
  static constexpr PreemptionOptions kPartial{.allow_partial = true, .allow_swap = false};
  static constexpr PreemptionOptions kSwap{
      .allow_partial = false, .allow_swap = true, .byte_seconds = 0};

  // Six requests that outgrow the cache together.
  static SchedulerStats run_tight(EngineOptions options, const PreemptionOptions& preemption) {
    options.scheduler.preemption = preemption;
    EngineFixture f(GetParam(), options);
    for (int i = 0; i < 6; ++i) f.submit(tokens_of(i, 6 + i), 14, i % 2);
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 6U);
    EXPECT_GT(f.num_rows_compared, 6 * 14);
    const PoolStats pool = f.engine.block_manager().stats().pools[0];
    EXPECT_EQ(pool.num_in_use, 0);
    EXPECT_EQ(pool.num_host_in_use, 0);
    return f.engine.scheduler().stats();
  }
};

TEST_P(EngineOn, ComputesWhatEachRequestAloneWouldGive) {
  EngineFixture f(GetParam(), toy_options(64));
  for (int i = 0; i < 7; ++i) {
    f.submit(tokens_of(i, 1 + 5 * i), 3 + i);
    f.step();
  }
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.size(), 7U);
}

TEST_P(EngineOn, PreemptsByRecompute) {
  EXPECT_GT(run_tight(toy_options(13), kRecompute).num_recomputes, 0);
}

TEST_P(EngineOn, PreemptsByPartialRelease) {
  EXPECT_GT(run_tight(toy_options(13), kPartial).num_partial_releases, 0);
}

TEST_P(EngineOn, PreemptsBySwap) {
  const SchedulerStats stats = run_tight(toy_options(13, 12), kSwap);
  EXPECT_GT(stats.num_swaps, 0);
}

TEST_P(EngineOn, PreemptsInAllWaysAtOnce) {
  EngineOptions options = toy_options(13, 5);  // the host soon has no room
  options.blocks.prefix_cache = false;
  const SchedulerStats stats =
      run_tight(options, {.token_seconds = 1, .key_seconds = 0, .byte_seconds = 0.001});
  EXPECT_GT(stats.num_swaps, 0);
  EXPECT_GT(stats.num_partial_releases + stats.num_recomputes, 0);
}

TEST_P(EngineOn, GroupsWithAndWithoutAWindow) {
  for (const PreemptionOptions& preemption : {kRecompute, kPartial, kSwap}) {
    EngineOptions options = toy_options(13, 12);
    add_windowed_group(options, 12);
    EXPECT_GT(run_tight(options, preemption).num_preemptions(), 0);
  }
}

TEST_P(EngineOn, SharesPrefixes) {
  EngineOptions options = toy_options(40);
  add_windowed_group(options, 40);
  EngineFixture f(GetParam(), options);
  for (int i = 0; i < 8; ++i) {
    std::vector<Token> tokens = tokens_of(1, 18);
    for (int j = 0; j < i; ++j) tokens.push_back(static_cast<Token>(j * i));
    f.submit(tokens, 4);
    f.step();
  }
  EXPECT_TRUE(f.run());
  EXPECT_GT(f.engine.block_manager().stats().num_hit_blocks, 8);
}

// Every turn of a conversation begins with all of the last one, which ended inside a block.
TEST_P(EngineOn, SharesTheTailsOfEarlierTurns) {
  EngineOptions options = toy_options(40);
  add_windowed_group(options, 40);
  options.blocks.share_tails = true;
  EngineFixture f(GetParam(), options);
  std::vector<Token> tokens = tokens_of(1, 9);
  for (int turn = 0; turn < 4; ++turn) {
    const RequestId id = f.submit(tokens, 6);
    EXPECT_TRUE(f.run());
    tokens = f.ended.at(id).tokens;
    for (int i = 0; i < 5; ++i) tokens.push_back(static_cast<Token>(turn * i));
  }
  const BlockStats stats = f.engine.block_manager().stats();
  EXPECT_GT(stats.num_copies, 0);
  EXPECT_GT(stats.num_hit_tokens, 4 * stats.num_hit_blocks);
}

TEST_P(EngineOn, ForksGoTheirOwnWays) {
  for (const PreemptionOptions& preemption : {kRecompute, kPartial, kSwap}) {
    EngineOptions options = toy_options(14, 20);
    options.scheduler.preemption = preemption;
    EngineFixture f(GetParam(), options);
    const RequestId first = f.submit(tokens_of(3, 10), 12);
    f.step_without_tokens();
    std::vector<RequestId> all{first};
    for (int i = 0; i < 3; ++i) all.push_back(f.fork(first));
    for (const RequestId id : all) f.extend(id, static_cast<Token>(id.value));
    for (int i = 0; i < 4; ++i) f.step();
    f.submit(tokens_of(4, 9), 6, -1);
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 5U);
    EXPECT_GT(f.engine.block_manager().stats().num_copies, 0);
    EXPECT_GT(f.engine.scheduler().stats().num_preemptions(), 0);
  }
}

TEST_P(EngineOn, LooksAtAnEncoder) {
  for (const PreemptionOptions& preemption : {kRecompute, kPartial, kSwap}) {
    EngineOptions options = toy_options(12, 12);
    add_cross_group(options, 10);
    options.scheduler.preemption = preemption;
    EngineFixture f(GetParam(), options);
    for (int i = 0; i < 5; ++i) f.submit(tokens_of(i, 5 + i), 12, 0, 3 * i);
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 5U);
    EXPECT_GT(f.engine.scheduler().stats().num_preemptions(), 0);
  }
}

// One that waits for the caller holds what another needs, and a third has moved out in vain.
TEST_P(EngineOn, CopiesOfAStepWithoutTokensAreRun) {
  EngineOptions options = toy_options(10, 10);
  options.blocks.prefix_cache = false;
  options.scheduler.max_tokens = 32;
  options.scheduler.preemption = kSwap;
  EngineFixture f(GetParam(), options);
  const RequestId high = f.submit(tokens_of(1, 20), 4, -1);
  const RequestId low = f.submit(tokens_of(2, 8), 4, 5);
  f.step_without_tokens();
  f.submit(tokens_of(3, 24), 4, 0);
  f.step_without_tokens();
  EXPECT_EQ(f.result.num_tokens, 0);
  EXPECT_EQ(f.engine.scheduler().stats().num_swaps, 1);
  f.extend(low, 1);
  f.extend(high, 1);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.size(), 3U);
}

TEST_P(EngineOn, AStepThatAModelThrowsInIsRepeated) {
  EngineFixture f(GetParam(), toy_options(13));
  for (int i = 0; i < 4; ++i) f.submit(tokens_of(i, 9), 12);
  for (int i = 0; i < 12; ++i) {
    f.throw_in_layer = i % 3 == 1 ? i % 2 : -1;
    if (f.throw_in_layer >= 0) {
      EXPECT_THROW(f.step(), std::runtime_error);
      f.engine.scheduler().validate();
      f.engine.block_manager().validate();
    }
    f.step();
  }
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.size(), 4U);
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineOn, ::testing::Values("cpu", "reference"),
                         [](const auto& backend) { return backend.param; });

TEST(Engine, RefusesStepsAfterABrokenInvariant) {
  EngineFixture f("reference", toy_options(8));
  f.submit(tokens_of(0, 4), 4);
  const auto sink = [](int) { return AttentionOutput{}; };
  const auto broken = [](int, const ScheduledBatch&) -> Qkv {
    throw Error(ErrorCode::kInternal, "the floor is gone");
  };
  EXPECT_THROW(f.engine.step(broken, sink), Error);
  for (int i = 0; i < 2; ++i) {
    try {
      f.step();
      FAIL() << "a broken engine took a step";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      EXPECT_NE(std::string(error.what()).find("the floor is gone"), std::string::npos);
    }
  }
}

TEST(Engine, WhatACallbackGivesIsChecked) {
  EngineFixture f("cpu", toy_options(8));
  f.submit(tokens_of(0, 4), 4);
  std::vector<float> data(4 * 4 * 8);
  const auto sink = [](int) { return AttentionOutput{}; };
  const auto without_keys = [&](int, const ScheduledBatch&) {
    Qkv input;
    input.q = TensorView(data.data(), DType::kF32, {4, 4, 8});
    return input;
  };
  const auto empty = [](int, const ScheduledBatch&) { return Qkv{}; };
  EXPECT_THROW(f.engine.step(without_keys, sink), Error);
  EXPECT_THROW(f.engine.step(empty, sink), Error);
  EXPECT_TRUE(f.run());  // and the step can be repeated
}

TEST(Engine, OptionsThatContradictThemselvesAreRefused) {
  const auto make = [](const EngineOptions& options) {
    Engine engine(make_backend("reference"), options);
  };
  EXPECT_NO_THROW(make(toy_options(8)));
  EngineOptions no_layers = toy_options(8);
  no_layers.layers.clear();
  EXPECT_THROW(make(no_layers), Error);
  EngineOptions other_blocks = toy_options(8);
  other_blocks.blocks.block_size = 8;
  EXPECT_THROW(make(other_blocks), Error);
  EngineOptions wrong_group = toy_options(8);
  wrong_group.layers[1].group = 1;
  EXPECT_THROW(make(wrong_group), Error);
  EngineOptions unused_group = toy_options(8);
  unused_group.groups.push_back(unused_group.groups[0]);
  EXPECT_THROW(make(unused_group), Error);
  EngineOptions encoder = toy_options(8);
  encoder.groups[0].spec.mask.causal = false;
  EXPECT_THROW(make(encoder), Error);
  EngineOptions windows_alone = toy_options(8);
  windows_alone.groups[0].spec.mask.window_left = 5;
  EXPECT_THROW(make(windows_alone), Error);
  windows_alone.scheduler.max_length = 50;
  EXPECT_NO_THROW(make(windows_alone));
  EngineOptions no_pool = toy_options(8);
  no_pool.groups[0].pool = 1;
  EXPECT_THROW(make(no_pool), Error);
}

// Prefixes, forks, windows, cross-attention, drafts, swaps and steps that are undone write only
// what is theirs.
TEST_P(EngineOn, TheCanaryStaysQuietThroughRightUse) {
  EngineOptions options = toy_options(20, 40);
  options.blocks.share_tails = true;
  add_windowed_group(options, 20);
  add_cross_group(options, 20);
  options.scheduler.preemption = kSwap;
  options.canary = true;
  EngineFixture f(GetParam(), options);
  for (int i = 0; i < 8; ++i) {
    const RequestId id = f.submit(tokens_of(i / 2, 6 + 3 * (i / 2)), 14, i % 2, i % 3 == 0 ? 5 : 0);
    if (i % 3 == 1) {
      f.throw_in_layer = 1;
      EXPECT_THROW(f.step(), std::runtime_error);
    }
    f.step();
    if (i == 3 && f.requests.contains(id)) f.fork(id);
  }
  EXPECT_TRUE(f.run());
  EXPECT_GT(f.engine.scheduler().stats().num_swaps, 0);
}

TEST(Engine, TheCanaryNamesWhoseSlotWasOverwritten) {
  EngineOptions options = toy_options(8);
  options.canary = true;
  EngineFixture f("cpu", options);
  f.submit(tokens_of(1, 6), 9);
  f.step();
  f.submit(tokens_of(2, 5), 9);
  f.on_batch = [&](const ScheduledBatch& batch) {
    if (batch.sequences().size() < 2) return;
    const KvCacheView& cache = f.engine.cache(1);
    const BlockId block =
        f.engine.block_manager().block_table(batch.sequences()[0].sequence, 0).front();
    // As a kernel with a wrong table would.
    static_cast<float*>(cache.k)[element_offset(cache, KvTensor::kK, block, 0, 3, 0)] += 1;
  };
  try {
    f.step();
    FAIL() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_STREQ(error.what(),
                 "sequence 0.1, group 0, token 3: block 1, slot 7 was overwritten since sequence "
                 "0.1 stored it");
  }
  EXPECT_THROW(f.step(), Error);  // what the cache holds is not to be trusted any more
}

// The last token of a request is never stored: 20 + 13 tokens fill the 32 slots of 8 blocks.
TEST(Engine, ARequestMayFillTheWholeCache) {
  EngineFixture f("cpu", toy_options(8));
  const RequestId fits = f.submit(tokens_of(1, 20), 13);
  const RequestId too_large = f.submit(tokens_of(2, 20), 14);
  const RequestId prompt_alone = f.submit(tokens_of(3, 32), 0);
  const RequestId long_prompt = f.submit(tokens_of(4, 33), 0);
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.at(fits).reason, FinishReason::kLength);
  EXPECT_EQ(f.finished.at(prompt_alone).reason, FinishReason::kLength);
  for (const RequestId id : {too_large, long_prompt}) {
    EXPECT_EQ(f.finished.at(id).reason, FinishReason::kTooLarge) << f.finished.at(id).detail;
  }
}

TEST(Engine, CachesAreThePoolsTimesTheLayers) {
  EngineFixture f("cpu", toy_options(8, 3));
  EXPECT_EQ(f.engine.cache(0).num_blocks, 9);
  EXPECT_EQ(f.engine.cache(1).num_blocks, 9);
  EXPECT_THROW(f.engine.cache(2), Error);
  const AttentionSpec spec = toy_spec();
  const std::int64_t block_bytes = 4 * spec.num_kv_heads * (spec.head_dim + spec.value_dim) * 4;
  EXPECT_GE(f.engine.cache_bytes(), 2 * (9 + 4) * block_bytes);
}

}  // namespace
}  // namespace quire
