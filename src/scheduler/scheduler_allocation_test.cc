// SPDX-License-Identifier: Apache-2.0
// A step of a size seen before allocates nothing. Counts every allocation of the program.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "scheduler/scheduler_fixture.h"

namespace {
std::int64_t num_allocations = 0;
}

void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* data = std::malloc(size)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace quire {
namespace {

TEST(SchedulerAllocation, DecodingAllocatesNothing) {
  const BlockManagerOptions blocks = testing::one_group(256);
  BlockManager manager(blocks);
  manager.reserve(8, 256);
  Scheduler scheduler({.max_tokens = 64, .max_sequences = 8}, blocks);
  for (int i = 0; i < 8; ++i) {
    scheduler.submit({.prompt = Prompt(testing::token_run(100 * i, 20), 4), .max_new_tokens = 60});
  }
  const auto step = [&] {
    const ScheduledBatch& batch = scheduler.schedule(manager);
    for (const ReadyRequest& ready : scheduler.commit(batch).ready) scheduler.extend(ready.id, 7);
    return batch.num_tokens();
  };
  for (int i = 0; i < 40; ++i) step();
  const std::int64_t before = num_allocations;
  std::int64_t num_tokens = 0;
  for (int i = 0; i < 16; ++i) num_tokens += step();
  EXPECT_EQ(num_allocations - before, 0);
  EXPECT_EQ(num_tokens, 8 * 16);
}

}  // namespace
}  // namespace quire
