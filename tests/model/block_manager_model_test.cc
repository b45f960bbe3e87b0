// SPDX-License-Identifier: Apache-2.0
// Random operations on BlockManager, held to a naive model after every one of them.
//
// QUIRE_MODEL_OPERATIONS sets how many operations the long runs make in all.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "model/block_manager_harness.h"

namespace quire::test {
namespace {

std::int64_t num_wanted_operations() {
  const char* text = std::getenv("QUIRE_MODEL_OPERATIONS");
#ifdef NDEBUG
  return text != nullptr ? std::atoll(text) : 2'000'000;
#else
  return text != nullptr ? std::atoll(text) : 50'000;
#endif
}

// Shrinks to the shortest list of operations that fails.
TEST(BlockManagerModel, RandomOperationsShrink) {
  const std::vector<HarnessConfig> configs = harness_configs();
  const bool ok = rc::check("the manager does what the naive one does", [&] {
    const HarnessConfig& config = configs[*rc::gen::inRange<std::size_t>(0, configs.size())];
    const auto operations = *rc::gen::container<std::vector<std::uint32_t>>(
        rc::gen::inRange<std::uint32_t>(0, 1u << 20));
    BlockManagerHarness harness(config);
    try {
      for (const std::uint32_t operation : operations) harness.run(operation);
    } catch (const std::exception& error) {
      RC_FAIL(harness.history() + "\n" + error.what());
    }
  });
  EXPECT_TRUE(ok);
}

class LongRun : public testing::TestWithParam<std::size_t> {};

TEST_P(LongRun, AgreesWithTheNaiveModel) {
  const std::vector<HarnessConfig> configs = harness_configs();
  const HarnessConfig& config = configs[GetParam()];
  const std::int64_t num_operations =
      num_wanted_operations() / static_cast<std::int64_t>(configs.size());
  constexpr std::int64_t kOperationsPerLife = 5'000;
  std::mt19937 random(static_cast<std::uint32_t>(GetParam()) + 1);
  std::int64_t num_done = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (num_done < num_operations) {
    BlockManagerHarness harness(config);
    for (std::int64_t i = 0; i < kOperationsPerLife && num_done < num_operations; ++i, ++num_done) {
      try {
        harness.run(static_cast<std::uint32_t>(random()));
      } catch (const std::exception& error) {
        FAIL() << "operation " << i << " of a life: " << error.what() << "\n"
               << harness.history() << "\n"
               << harness.manager().dump();
      }
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("operations", std::to_string(num_done));
  RecordProperty("seconds", std::to_string(seconds));
}

INSTANTIATE_TEST_SUITE_P(Configs, LongRun,
                         testing::Range<std::size_t>(0, harness_configs().size()));

// The same operations give the same blocks.
TEST(BlockManagerModel, IsDeterministic) {
  for (const HarnessConfig& config : harness_configs()) {
    BlockManagerHarness first(config);
    BlockManagerHarness second(config);
    std::mt19937 random(7);
    for (int i = 0; i < 300; ++i) {
      const auto operation = static_cast<std::uint32_t>(random());
      first.run(operation);
      second.run(operation);
    }
    EXPECT_EQ(first.manager().dump(), second.manager().dump()) << config.name;
  }
}

}  // namespace
}  // namespace quire::test
