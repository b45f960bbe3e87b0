// SPDX-License-Identifier: Apache-2.0
// A step of a size seen before allocates nothing, from the scheduler to the backend. Counts every
// operator new of the whole test program.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocation/allocations.h"
#include "engine/engine_fixture.h"

namespace quire {
namespace {

TEST(StepAllocation, DecodingAllocatesNothing) {
  EngineOptions options = testing::toy_options(256, 8);
  testing::add_windowed_group(options, 256);
  options.blocks.validate_interval = 0;
  options.scheduler.max_tokens = 64;
  options.scheduler.max_sequences = 8;
  Engine engine(make_backend("cpu"), options);
  for (int i = 0; i < 8; ++i) {
    const std::vector<Token> tokens(static_cast<std::size_t>(20 + i), static_cast<Token>(i));
    engine.submit({.prompt = engine.make_prompt(tokens), .max_new_tokens = 90});
  }
  std::vector<float> input(64 * 4 * 8, 0.5F);
  std::vector<float> out(64 * 4 * 6);
  std::int64_t num_rows = 0;
  const QkvSource qkv = [&](int, const ScheduledBatch& batch) {
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
  const auto step = [&] {
    const StepResult result = engine.step(qkv, sink);
    for (const ReadyRequest& ready : result.ready) engine.extend(ready.id, 7);
    return result.num_tokens;
  };
  for (int i = 0; i < 60; ++i) step();
  const std::int64_t before = test::num_allocations();
  std::int64_t num_tokens = 0;
  for (int i = 0; i < 20; ++i) num_tokens += step();
  EXPECT_EQ(test::num_allocations() - before, 0);
  EXPECT_EQ(num_tokens, 8 * 20);
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace quire
