// SPDX-License-Identifier: Apache-2.0
// Random traces on which memory runs out at every allocation of every call of the scheduler, one
// after the other. Each call is repeated until it needs no more allocations than it may have, and
// everything that scheduler_run.h asks of a trace holds all the while.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "allocation/allocations.h"
#include "model/scheduler_run.h"

namespace quire::test {
namespace {

TEST(SchedulerFailure, LosesNothing) {
  std::map<std::string, std::int64_t> num_failures;
  const SchedulerRun::Attempt attempt = [&](const char* name, const std::function<void()>& call,
                                            const std::function<void()>& check) {
    fail_every_allocation(call, [&](std::int64_t) {
      ++num_failures[name];
      check();
      return true;
    });
  };
  const char* text = std::getenv("QUIRE_MODEL_TRACES");
  const int num_traces = text != nullptr ? std::atoi(text) : 60;
  std::int64_t num_swaps = 0;
  std::int64_t num_copies = 0;
  for (int seed = 0; seed < num_traces; ++seed) {
    SchedulerRun run(static_cast<std::uint32_t>(seed) + 2'000'000, attempt);
    try {
      run.play();
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed + 2'000'000 << ": " << error.what();
    }
    num_swaps += run.stats().num_swaps;
    num_copies += run.block_stats().num_copies;
  }
  EXPECT_GT(num_swaps, 10);
  EXPECT_GT(num_copies, 10);
  for (const char* name : {"submit", "cancel", "schedule", "extend", "fork"}) {
    EXPECT_GT(num_failures[name], 0) << name << " never ran out of memory";
  }
  EXPECT_EQ(num_failures["commit"], 0);  // a computed step is never lost
  EXPECT_EQ(num_failures["finish"], 0);
  for (const auto& [name, count] : num_failures) RecordProperty(name, std::to_string(count));
}

}  // namespace
}  // namespace quire::test
