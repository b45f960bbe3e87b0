// SPDX-License-Identifier: Apache-2.0
// Random traffic on engines that are far too small for it: requests with common beginnings, forks,
// stops and priorities, and every way of preemption. Every row is compared with plain attention.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "engine/engine_fixture.h"

namespace quire {
namespace {

using testing::EngineFixture;

class Traffic {
 public:
  explicit Traffic(std::uint32_t seed) : random_(seed) {}

  // Where a fork copies a block into one that a swap gives back in the same step, the order of the
  // copies counts; `num_ordered` tells that this was seen.
  void play(const std::string& backend) {
    EngineFixture f(backend, options());
    f.on_batch = [this](const ScheduledBatch& batch) { count_ordered(batch); };
    for (int i = 0; i < 40; ++i) {
      if (chance(40)) submit(f);
      f.step_without_tokens();
      answer(f);
    }
    EXPECT_TRUE(f.run());
    const SchedulerStats stats = f.engine.scheduler().stats();
    num_swaps += stats.num_swaps;
    num_recomputes += stats.num_recomputes;
    num_partial_releases += stats.num_partial_releases;
    num_copies += f.engine.block_manager().stats().num_copies;
    num_rows += f.num_rows_compared;
  }

  std::int64_t num_swaps = 0;
  std::int64_t num_recomputes = 0;
  std::int64_t num_partial_releases = 0;
  std::int64_t num_copies = 0;
  std::int64_t num_ordered = 0;
  std::int64_t num_rows = 0;

 private:
  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  EngineOptions options() {
    EngineOptions options = testing::toy_options(pick(10, 16), chance(70) ? pick(6, 30) : 0);
    if (chance(40)) testing::add_windowed_group(options, pick(10, 16));
    options.blocks.prefix_cache = chance(70);
    options.blocks.share_tails = chance(40);
    options.scheduler.max_sequences = pick(2, 8);
    options.scheduler.max_chunk = chance(50) ? pick(2, 8) : 0;
    options.scheduler.prefix = {.window = pick(1, 3), .wait_for_shared = chance(30)};
    options.scheduler.preemption.allow_partial = chance(50);
    options.scheduler.preemption.byte_seconds = chance(70) ? 0 : 1e-9;
    options.canary = true;
    return options;
  }

  void submit(EngineFixture& f) {
    std::vector<Token> tokens;
    const int length = pick(1, 14);
    for (int i = 0; i < length; ++i) {
      tokens.push_back(static_cast<Token>(i < 6 ? i : pick(0, 90)));
    }
    f.submit(tokens, pick(1, 14), pick(0, 2));
  }

  void answer(EngineFixture& f) {
    const std::vector<ReadyRequest> all_ready(f.result.ready.begin(), f.result.ready.end());
    for (const ReadyRequest& ready : all_ready) {
      if (chance(5)) {
        f.engine.finish(ready.id);
        continue;
      }
      for (int num_forks = chance(25) ? pick(1, 2) : 0; num_forks > 0; --num_forks) {
        if (f.requests.size() < 12) f.extend(f.fork(ready.id), static_cast<Token>(pick(0, 90)));
      }
      f.extend(ready.id, static_cast<Token>(pick(0, 90)));
    }
  }

  // A stage that writes a block which an earlier one reads.
  void count_ordered(const ScheduledBatch& batch) {
    std::vector<std::int32_t> read;
    for (const CopyStage& stage : batch.copies()) {
      const GroupCopies& copies = stage.groups[0];
      for (const BlockCopy& copy : copies.on_device)
        num_ordered += std::ranges::count(read, copy.dst);
      for (const BlockCopy& copy : copies.to_device)
        num_ordered += std::ranges::count(read, copy.dst);
      for (const BlockCopy& copy : copies.to_host) read.push_back(copy.src);
    }
  }

  std::mt19937 random_;
};

class EngineRandom : public ::testing::TestWithParam<std::string> {};

// Sanitizers take 15 times as long, and look for other mistakes.
constexpr int kNumSeeds = kHasAddressSanitizer || kHasThreadSanitizer ? 30 : 120;

TEST_P(EngineRandom, EveryRowIsRight) {
  Traffic total(0);
  for (std::uint32_t seed = 1; seed <= kNumSeeds; ++seed) {
    Traffic traffic(seed);
    traffic.play(GetParam());
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    total.num_swaps += traffic.num_swaps;
    total.num_recomputes += traffic.num_recomputes;
    total.num_partial_releases += traffic.num_partial_releases;
    total.num_copies += traffic.num_copies;
    total.num_ordered += traffic.num_ordered;
    total.num_rows += traffic.num_rows;
  }
  constexpr int kMany = kNumSeeds * 5 / 6;
  EXPECT_GT(total.num_swaps, kMany);
  EXPECT_GT(total.num_recomputes, kMany);
  EXPECT_GT(total.num_partial_releases, kMany);
  EXPECT_GT(total.num_copies, kMany);
  EXPECT_GT(total.num_ordered, kNumSeeds / 12);
  RecordProperty("rows", std::to_string(total.num_rows));
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineRandom, ::testing::Values("cpu", "reference"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace quire
