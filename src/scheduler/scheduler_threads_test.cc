// SPDX-License-Identifier: Apache-2.0
// Requests come and are cancelled from other threads while steps run; meant for ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "scheduler/scheduler_fixture.h"

namespace quire {
namespace {

TEST(SchedulerThreads, SubmitAndCancelFromOtherThreads) {
  constexpr int kNumThreads = 3;
  constexpr int kNumRequests = 100;  // of each thread
  testing::SchedulerFixture f({.max_tokens = 32, .max_sequences = 8}, testing::one_group(24));
  std::atomic<int> num_done = 0;
  std::atomic<bool> may_run = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < kNumThreads; ++t) {
    threads.emplace_back([&, t] {
      while (!may_run) std::this_thread::yield();
      for (int i = 0; i < kNumRequests; ++i) {
        const std::vector<Token> tokens = testing::token_run(t * 1000 + i % 5, 3 + i % 11);
        const RequestId id = f.submit(tokens, 1 + i % 6, i % 3);
        if (i % 4 == 0) f.scheduler.cancel(id);
        if (f.scheduler.num_unfinished() > 64) std::this_thread::yield();
      }
      ++num_done;
    });
  }
  may_run = true;
  while (num_done < kNumThreads) f.step();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(f.run());
  EXPECT_EQ(f.finished.size(), static_cast<std::size_t>(kNumThreads * kNumRequests));
  for (const auto& [id, end] : f.finished) {
    EXPECT_TRUE(end.reason == FinishReason::kLength || end.reason == FinishReason::kCancelled)
        << id.value;
  }
  EXPECT_EQ(f.manager.stats().num_sequences, 0);
}

}  // namespace
}  // namespace quire
