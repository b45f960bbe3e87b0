// SPDX-License-Identifier: Apache-2.0
// Speculation changes how many steps a request takes, and nothing else: its tokens are those that
// it has without, and every row, drafts included, is plain attention over what stands before it.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_fixture.h"

namespace quire {
namespace {

using testing::EngineFixture;

using Texts = std::map<RequestId, std::vector<Token>>;

void submit_all(EngineFixture& f, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < 7; ++i) {
    std::vector<Token> tokens;
    const auto length = 1 + random() % 12;
    for (std::uint32_t j = 0; j < length; ++j) {
      tokens.push_back(static_cast<Token>(j < 5 ? j : random() % 90));
    }
    f.submit(tokens, 1 + static_cast<std::int64_t>(random() % 18),
             static_cast<std::int32_t>(random() % 3));
  }
}

Texts texts_of(const EngineFixture& f) {
  Texts texts;
  for (const auto& [id, request] : f.ended) texts[id] = request.tokens;
  return texts;
}

EngineOptions tight_options(std::uint32_t seed) {
  EngineOptions options = testing::toy_options(9 + seed % 3, seed % 2 == 0 ? 12 : 0);
  if (seed % 3 == 0) testing::add_windowed_group(options, 13);
  options.blocks.share_tails = seed % 4 == 0;
  options.scheduler.preemption.byte_seconds = seed % 4 == 2 ? 0 : 1e-9;
  options.canary = true;
  return options;
}

// A guesser that is right about each of `num_drafts` tokens with some probability.
EngineFixture::Guess make_guess(std::mt19937& random, int num_drafts, std::uint32_t percent) {
  return [&random, num_drafts, percent](const std::vector<Token>& tokens) {
    std::vector<Token> all = tokens;
    for (int i = 0; i < num_drafts; ++i) {
      const Token right = EngineFixture::next_token(all);
      all.push_back(random() % 100 < percent ? right : (right + 1) % 97);
    }
    return std::vector<Token>(all.end() - num_drafts, all.end());
  };
}

class EngineSpeculation : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineSpeculation, GivesTheTokensThatThereAreWithout) {
  std::int64_t num_accepted = 0;
  std::int64_t num_rejected = 0;
  std::int64_t num_preemptions = 0;
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    EngineFixture plain(GetParam(), tight_options(seed));
    submit_all(plain, seed);
    ASSERT_TRUE(plain.run());

    EngineFixture f(GetParam(), tight_options(seed));
    std::mt19937 random(seed);
    const EngineFixture::Guess guess =
        make_guess(random, 1 + static_cast<int>(seed % 4), 30 + 10 * (seed % 7));
    submit_all(f, seed);
    for (int i = 0; i < 1000 && f.engine.num_unfinished() > 0; ++i) f.step_with_drafts(guess);
    f.step_without_tokens();
    ASSERT_EQ(f.engine.num_unfinished(), 0);
    EXPECT_EQ(texts_of(f), texts_of(plain)) << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    const SchedulerStats stats = f.engine.scheduler().stats();
    num_accepted += stats.num_accepted_drafts;
    num_rejected += stats.num_drafts - stats.num_accepted_drafts;
    num_preemptions += stats.num_preemptions();
    EXPECT_EQ(f.engine.block_manager().stats().pools[0].num_in_use, 0);
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_GT(num_rejected, 100);
  EXPECT_GT(num_preemptions, 20);
}

TEST_P(EngineSpeculation, GoodGuessesSaveSteps) {
  const auto num_steps = [&](std::uint32_t percent) {
    EngineFixture f(GetParam(), testing::toy_options(64));
    std::mt19937 random(1);
    f.submit({1, 2, 3}, 40);
    while (f.engine.num_unfinished() > 0) f.step_with_drafts(make_guess(random, 3, percent));
    return f.engine.scheduler().stats().num_steps;
  };
  EXPECT_EQ(num_steps(0), 40);
  EXPECT_EQ(num_steps(100), 11);  // the prompt gives one token, every further step four
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineSpeculation, ::testing::Values("cpu", "reference"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace quire
