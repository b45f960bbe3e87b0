// SPDX-License-Identifier: Apache-2.0
// An engine on a device whose memory is apart and whose work runs later: swaps cross between the
// two memories, and a batch is not filled again before the device has read it.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/engine_fixture.h"
#include "fake_device/fake_device.h"

namespace quire::testing {
namespace {

class EngineOnDevice : public ::testing::TestWithParam<bool> {};

TEST_P(EngineOnDevice, EveryRowIsRight) {
  for (const bool allow_partial : {false, true}) {
    std::unique_ptr<AttentionBackend> device = make_fake_device();
    DeviceMemory& memory = device->memory();
    EngineOptions options = toy_options(13, 12);
    add_windowed_group(options, 12);
    add_cross_group(options, 12);
    options.stream = GetParam() ? memory.create_stream() : Stream{};
    options.scheduler.preemption.allow_partial = allow_partial;
    options.scheduler.preemption.byte_seconds = allow_partial ? 1 : 0;
    EngineFixture f(std::move(device), options);
    for (int i = 0; i < 6; ++i) {
      const std::vector<Token> tokens(static_cast<std::size_t>(5 + 2 * i), static_cast<Token>(i));
      f.submit(tokens, 14, i % 2, i % 3 == 0 ? 2 * i : 0);
    }
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 6U);
    const SchedulerStats stats = f.engine.scheduler().stats();
    EXPECT_GT(allow_partial ? stats.num_partial_releases : stats.num_swaps, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, EngineOnDevice, ::testing::Bool(),
                         [](const auto& own) { return own.param ? "own" : "default"; });

// Nothing but the engine itself waits for the device between these steps.
TEST(EngineOnFakeDevice, WaitsBeforeABatchIsFilledAgain) {
  EngineFixture f(make_fake_device(), toy_options(40));
  for (int i = 0; i < 4; ++i) {
    const std::vector<Token> tokens(static_cast<std::size_t>(9 + i), static_cast<Token>(i));
    f.submit(tokens, 16);
  }
  f.compares = false;
  for (int i = 0; i < 12; ++i) f.step();
  f.compares = true;
  EXPECT_TRUE(f.run());
  EXPECT_GT(f.num_rows_compared, 0);
}

// The layout that the device prefers holds bf16 in tiles: swaps and copies move whole blocks of it.
TEST(EngineOnFakeDevice, UsesThePreferredLayout) {
  EngineOptions options = toy_options(8, 4);
  AttentionSpec& spec = options.groups[0].spec;
  spec.q_dtype = spec.out_dtype = spec.kv.dtype = DType::kBF16;
  spec.head_dim = spec.value_dim = 32;
  spec.kv.block_size = options.blocks.block_size = 16;
  Engine engine(make_fake_device(), options);
  EXPECT_EQ(engine.cache(0).format.layout, KvLayoutId::kPairTiled);
}

}  // namespace
}  // namespace quire::testing
