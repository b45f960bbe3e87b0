// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/fiber.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <vector>

namespace quire::simt::internal {
namespace {

// What the fibers of a test do; they see it through this.
struct Work {
  FiberSet* fibers = nullptr;
  std::size_t current = 0;
  std::vector<int> steps;  // [fiber]
  int limit = 0;
};
Work* work = nullptr;

// Passes control around until every fiber has taken `limit` steps, then parks.
[[noreturn]] void pass_around() {
  FiberSet::finish_first_switch();
  for (;;) {
    const std::size_t self = work->current;
    const std::size_t next = (self + 1) % work->steps.size();
    if (++work->steps[self] >= work->limit && next == 0) {
      work->fibers->return_to_host(self);
    } else {
      work->current = next;
      work->fibers->switch_fiber(self, next);
    }
  }
}

TEST(Fibers, KeepTheirPlacesAndCanStartAnew) {
  FiberSet fibers(4, pass_around);
  Work todo{.fibers = &fibers, .current = 0, .steps = std::vector<int>(4), .limit = 10};
  work = &todo;
  fibers.prepare(4);
  fibers.resume(0);
  EXPECT_EQ(todo.steps, std::vector<int>(4, 10));
  // Fiber 3 came back to the host; it and the others go on where they stand.
  todo.limit = 20;
  todo.current = 0;
  fibers.resume(0);
  EXPECT_EQ(todo.steps, std::vector<int>(4, 20));
  for (std::size_t i = 0; i < 4; ++i) fibers.reset(i);
  todo.steps.assign(4, 0);
  todo.current = 0;
  fibers.resume(0);
  EXPECT_EQ(todo.steps, std::vector<int>(4, 20));
}

TEST(Fibers, AnAddressTellsItsStack) {
  FiberSet fibers(3, pass_around);
  fibers.prepare(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::uintptr_t low = fibers.stack_low(i);
    EXPECT_FALSE(fibers.on_any_stack(low - 1));
    EXPECT_TRUE(fibers.on_any_stack(low));
    EXPECT_TRUE(fibers.on_any_stack(low + FiberSet::kStackBytes - 1));
    EXPECT_FALSE(fibers.on_any_stack(low + FiberSet::kStackBytes));
    EXPECT_EQ(fibers.fiber_at(low), i);
  }
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  EXPECT_FALSE(fibers.on_any_stack(here));
  EXPECT_LT(here - fibers.host_stack().low, fibers.host_stack().bytes);
}

TEST(Fibers, SwitchesPerSecond) {
  constexpr int kFibers = 256;
  FiberSet fibers(kFibers, pass_around);
  Work todo{.fibers = &fibers, .current = 0, .steps = std::vector<int>(kFibers), .limit = 2000};
  work = &todo;
  fibers.prepare(kFibers);
  const auto start = std::chrono::steady_clock::now();
  fibers.resume(0);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cout << "fiber switches: " << kFibers * todo.limit / elapsed.count() / 1e6
            << " million per second among " << kFibers << " fibers\n";
  EXPECT_EQ(todo.steps.back(), todo.limit);
}

}  // namespace
}  // namespace quire::simt::internal
