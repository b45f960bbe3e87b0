// SPDX-License-Identifier: Apache-2.0
// Requests come to an engine from other threads, also from its own callbacks, while steps run on
// the threads of the backend; meant for ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/engine_fixture.h"

namespace quire {
namespace {

TEST(EngineThreads, SubmitAndCancelWhileStepsRun) {
  constexpr int kNumThreads = 2;
  constexpr int kNumRequests = 40;  // of each thread
  Engine engine(make_backend("cpu", {.num_threads = 2, .isa = {}}), testing::toy_options(16, 8));
  std::vector<float> input(16 * 4 * 8, 0.5F);
  std::vector<float> out(16 * 4 * 6);
  std::int64_t num_rows = 0;
  RequestId from_callback{};
  const QkvSource qkv = [&](int layer, const ScheduledBatch& batch) {
    if (layer == 0 && from_callback == RequestId{}) {
      const std::vector<Token> tokens(5, 3);
      from_callback = engine.submit({.prompt = engine.make_prompt(tokens), .max_new_tokens = 2});
    }
    num_rows = batch.num_tokens();
    Qkv given;
    given.q = TensorView(input.data(), DType::kF32, {num_rows, 4, 8});
    given.k = TensorView(input.data(), DType::kF32, {num_rows, 2, 8});
    given.v = TensorView(input.data(), DType::kF32, {num_rows, 2, 6});
    return given;
  };
  const OutputSink sink = [&](int) {
    AttentionOutput where;
    where.out = MutableTensorView(out.data(), DType::kF32, {num_rows, 4, 6});
    return where;
  };
  std::int64_t num_finished = 0;
  const auto step = [&] {
    const StepResult result = engine.step(qkv, sink);
    num_finished += std::ssize(result.finished);
    for (const ReadyRequest& ready : result.ready) engine.extend(ready.id, 7);
  };
  std::atomic<int> num_done = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kNumThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kNumRequests; ++i) {
        const std::vector<Token> tokens(static_cast<std::size_t>(1 + i % 17),
                                        static_cast<Token>(t));
        const RequestId id =
            engine.submit({.prompt = engine.make_prompt(tokens), .max_new_tokens = 1 + i % 5});
        if (i % 5 == 0) engine.cancel(id);
        std::this_thread::yield();
      }
      ++num_done;
    });
  }
  while (num_done < kNumThreads) step();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 5000 && engine.num_unfinished() > 0; ++i) step();
  step();
  EXPECT_EQ(engine.num_unfinished(), 0);
  EXPECT_EQ(num_finished, kNumThreads * kNumRequests + 1);
}

}  // namespace
}  // namespace quire
