// SPDX-License-Identifier: Apache-2.0
// Random traces on which memory runs out at every allocation of every call of the scheduler, one
// after the other. Each call is repeated until it needs no more allocations than it may have, and
// everything that scheduler_run.h asks of a trace holds all the while.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <string>

#include "model/scheduler_run.h"

namespace {

// Allocations that still succeed; negative: all do.
std::int64_t num_allowed = -1;

void* allocate(std::size_t size) {
  if (num_allowed == 0) throw std::bad_alloc();
  if (num_allowed > 0) --num_allowed;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: the compiler would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return allocate(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return allocate(size);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return num_allowed == 0 ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace quire::test {
namespace {

TEST(SchedulerFailure, LosesNothing) {
  std::map<std::string, std::int64_t> num_failures;
  const SchedulerRun::Attempt attempt = [&](const char* name, const std::function<void()>& call,
                                            const std::function<void()>& check) {
    for (std::int64_t allowed = 0;; ++allowed) {
      bool failed = false;
      num_allowed = allowed;
      try {
        call();
      } catch (const std::bad_alloc&) {
        failed = true;
      } catch (...) {
        num_allowed = -1;
        throw;
      }
      num_allowed = -1;
      if (!failed) return;
      ++num_failures[name];
      check();
    }
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
