// SPDX-License-Identifier: Apache-2.0
// Kernels that touch what they must not, each beside a twin that does it right.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/sanitizers.h"
#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

// What the emulator sees without hooks too.
class Limits : public WarpWidths {};

class Bounds : public WarpWidths {
 protected:
  void SetUp() override { QUIRE_SIMT_NEEDS_HOOKS(); }
};

constexpr std::array<int, 4> kTable{2, 3, 5, 7};
volatile int host_variable = 0;

struct Wide {
  std::array<float, 6> numbers;
};

TEST_P(Bounds, DynamicSharedMemory) {
  const auto store_at = [](int offset) {
    return [offset] {
      static_cast<float*>(dynamic_shared())[static_cast<int>(thread_idx().x) + offset] = 1;
    };
  };
  const LaunchShape shape = two_warps(2 * 4 * static_cast<std::size_t>(width()));
  EXPECT_THAT(fault_of(shape, store_at(0)), EndsWell());
  EXPECT_THAT(fault_of(shape, store_at(1)),
              Faults(FaultKind::kOutOfBounds, "0 bytes past the end of dynamic shared memory"));
  EXPECT_THAT(fault_of(shape, store_at(-1)),
              Faults(FaultKind::kOutOfBounds, "4 bytes before dynamic shared memory"));
}

TEST_P(Bounds, StaticSharedVariablesLieApart) {
  const auto store_at = [](int index) {
    return [index] {
      QUIRE_SIMT_SHARED(int[4], first);
      QUIRE_SIMT_SHARED(int[4], second);
      if (thread_idx().x == 0) first[index] = second[3] = 1;
    };
  };
  EXPECT_THAT(fault_of(one_warp(), store_at(3)), EndsWell());
  EXPECT_THAT(fault_of(one_warp(), store_at(6)),
              Faults(FaultKind::kOutOfBounds, "8 bytes past the end of shared variable first (16"));
}

TEST_P(Bounds, AnAccessThatBeginsInsideAndEndsOutside) {
  const auto store_at = [](int offset) {
    return [offset] {
      auto* const bytes = static_cast<unsigned char*>(dynamic_shared()) + offset;
      std::memset(bytes, 0, 8);
    };
  };
  const LaunchShape shape{.shared_bytes = 64, .warp_width = width()};
  EXPECT_THAT(fault_of(shape, store_at(56)), EndsWell());
  EXPECT_THAT(fault_of(shape, store_at(60)),
              Faults(FaultKind::kOutOfBounds, "the access begins 60 bytes into dynamic"));
}

TEST_P(Bounds, GlobalBuffers) {
  std::vector<float> memory(300);
  const GlobalBuffer buffer(memory.data() + 100, 100 * 4, "scores", Access::kReadWrite);
  const auto store_at = [p = memory.data() + 100](int index) {
    return [p, index] { p[index] = 1; };
  };
  const LaunchShape shape{.warp_width = width()};
  EXPECT_THAT(fault_of(shape, store_at(99)), EndsWell());
  EXPECT_THAT(fault_of(shape, store_at(102)),
              Faults(FaultKind::kOutOfBounds, "8 bytes past the end of scores (400 bytes)"));
  EXPECT_THAT(fault_of(shape, store_at(-1)),
              Faults(FaultKind::kOutOfBounds, "4 bytes before scores"));
  EXPECT_THAT(fault_of(shape, [p = memory.data() + 198] { *reinterpret_cast<Wide*>(p) = {}; }),
              Faults(FaultKind::kOutOfBounds, "the access begins 392 bytes into scores"));
}

TEST_P(Bounds, CopiesOfStructures) {
  std::vector<Wide> from(2);
  std::vector<Wide> to(2);
  const GlobalBuffer in(from.data(), sizeof(Wide), "from", Access::kReadOnly);
  const GlobalBuffer out(to.data(), sizeof(Wide), "to", Access::kReadWrite);
  const auto copy = [f = from.data(), t = to.data()](int read, int write) {
    return [=] { t[write] = f[read]; };
  };
  const LaunchShape shape{.warp_width = width()};
  EXPECT_THAT(fault_of(shape, copy(0, 0)), EndsWell());
  EXPECT_THAT(fault_of(shape, copy(1, 0)), Faults(FaultKind::kOutOfBounds, "past the end of from"));
  EXPECT_THAT(fault_of(shape, copy(0, 1)), Faults(FaultKind::kOutOfBounds, "past the end of to"));
}

TEST_P(Bounds, UnregisteredAndNullPointers) {
  std::vector<float> memory(4);
  const LaunchShape shape{.warp_width = width()};
  EXPECT_THAT(fault_of(shape, [p = memory.data()] { *p = 1; }),
              Faults(FaultKind::kOutOfBounds, "no buffer is registered"));
  float* volatile null = nullptr;
  EXPECT_THAT(fault_of(shape, [p = null] { *p = 1; }),
              Faults(FaultKind::kOutOfBounds, "a null pointer"));
}

TEST_P(Bounds, ReadOnlyBuffers) {
  int memory = 3;
  const GlobalBuffer buffer(&memory, 4, "lengths", Access::kReadOnly);
  const LaunchShape shape{.warp_width = width()};
  EXPECT_THAT(fault_of(shape, [p = &memory] { check(*p == 3, "the value"); }), EndsWell());
  EXPECT_THAT(fault_of(shape, [p = &memory] { *p = 4; }),
              Faults(FaultKind::kReadOnly, "0 bytes into lengths"));
  EXPECT_THAT(fault_of(shape, [p = &memory] { atomic_add(p, 1); }),
              Faults(FaultKind::kReadOnly, "atomic update of 4 bytes"));
}

TEST_P(Bounds, ConstantsMayBeReadAndHostVariablesNotEvenThat) {
  const LaunchShape shape{.block = {4}, .warp_width = width()};
  EXPECT_THAT(fault_of(shape, [] { check(kTable[thread_idx().x] > 1, "a prime"); }), EndsWell());
  EXPECT_THAT(fault_of(shape, [p = const_cast<int*>(kTable.data())] { p[thread_idx().x] = 1; }),
              Faults(FaultKind::kReadOnly, "a constant of the program"));
  EXPECT_THAT(fault_of(shape, [] { check(host_variable == 0, ""); }),
              Faults(FaultKind::kHostMemory, "a variable of the host program"));
  int local = 0;
  EXPECT_THAT(fault_of(shape, [&local] { check(local == 0, ""); }),
              Faults(FaultKind::kHostMemory, "the host's stack"));
  EXPECT_THAT(fault_of(shape, [local] { check(local == 0, ""); }), EndsWell());
}

// A pointer to a local variable is worth nothing to another thread.
TEST_P(Bounds, StacksOfOtherThreads) {
  const auto kernel = [](bool take) {
    return [take] {
      QUIRE_SIMT_SHARED(int*, pointer);
      int local = 7;
      if (thread_idx().x == 0) pointer = &local;
      sync_threads();
      if (take || thread_idx().x == 0) check(*pointer == 7, "the local variable");
      sync_threads();
    };
  };
  EXPECT_THAT(fault_of(two_warps(), kernel(false)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(true)),
              Faults(FaultKind::kForeignStack, "a local variable of thread 0"));
}

TEST_P(Bounds, UninitialisedSharedMemory) {
  const auto kernel = [](bool fill) {
    return [fill] {
      auto* const numbers = static_cast<float*>(dynamic_shared());
      if (fill || thread_idx().x != 5) numbers[thread_idx().x] = 1;
      sync_threads();
      check(numbers[thread_idx().x ^ 1] == 1 || !fill, "the neighbour's number");
    };
  };
  const LaunchShape shape = two_warps(1024);
  EXPECT_THAT(fault_of(shape, kernel(true)), EndsWell());
  EXPECT_THAT(fault_of(shape, kernel(false)), Faults(FaultKind::kUninitialised, "20 bytes into"));
  EXPECT_THAT(fault_of(shape, kernel(false), {.check_uninitialised_shared = false}), EndsWell());
}

// What one block leaves in shared memory is not there for the next.
TEST_P(Bounds, SharedMemoryDoesNotOutliveItsBlock) {
  const auto kernel = [](bool only_first) {
    return [only_first] {
      QUIRE_SIMT_SHARED(int, value);
      if (!only_first || block_idx().x == 0) value = 1;
      check(value == 1, "the value");
    };
  };
  const LaunchShape shape{.grid = {2}, .warp_width = width()};
  EXPECT_THAT(fault_of(shape, kernel(false)), EndsWell());
  EXPECT_THAT(fault_of(shape, kernel(true)), Faults(FaultKind::kUninitialised, "block (1,0,0)"));
}

TEST_P(Bounds, UndefinedGlobalMemory) {
  std::vector<int> memory(8);
  GlobalBuffer buffer(memory.data(), 32, "workspace", Access::kReadWrite, Contents::kUndefined);
  const LaunchShape shape{.block = {4}, .warp_width = width()};
  const auto store = [p = memory.data()] { p[thread_idx().x] = 1; };
  const auto load = [p = memory.data()] { check(p[thread_idx().x] == 1, "one"); };
  EXPECT_THAT(fault_of(shape, load), Faults(FaultKind::kUninitialised, "0 bytes into workspace"));
  EXPECT_THAT(fault_of(shape, store), EndsWell());
  EXPECT_THAT(fault_of(shape, load), EndsWell());
  EXPECT_THAT(fault_of(shape, [p = memory.data()] { atomic_add(&p[4], 1); }),
              Faults(FaultKind::kUninitialised, "16 bytes into workspace"));
  buffer.set_defined(8, 4, false);
  EXPECT_THAT(fault_of(shape, load), Faults(FaultKind::kUninitialised, "8 bytes into workspace"));
  buffer.set_defined(8, 4, true);
  EXPECT_THAT(fault_of(shape, load), EndsWell());
}

TEST_P(Limits, SharedMemory) {
  const auto kernel = [] {
    QUIRE_SIMT_SHARED(char[1000], large);
    large[0] = 1;
  };
  const LaunchShape shape{.shared_bytes = 1000, .warp_width = width()};
  EXPECT_THAT(fault_of(shape, kernel, {.shared_limit_bytes = 2000}), EndsWell());
  EXPECT_THAT(fault_of(shape, kernel, {.shared_limit_bytes = 1999}),
              Faults(FaultKind::kSharedLimit, "no room for shared variable large of 1000 bytes"));
}

// Needs its frame after the call, so that it stays a recursion.
[[gnu::noinline]] int use_stack(int depth) {
  volatile char frame[1000] = {};
  frame[0] = static_cast<char>(depth);
  return depth == 0 ? 0 : use_stack(depth - 1) + frame[0];
}

TEST_P(Bounds, StackOverflow) {
  const LaunchShape shape{.warp_width = width()};
  EXPECT_THAT(fault_of(shape, [] { use_stack(100); }), EndsWell());
  EXPECT_THAT(fault_of(shape, [] { use_stack(10'000); }),
              Faults(FaultKind::kStackOverflow, "too much stack"));
}

TEST_P(Limits, AlignmentOfAtomics) {
  alignas(8) std::array<std::uint32_t, 4> memory{};
  const GlobalBuffer buffer(memory.data(), 16, "counters", Access::kReadWrite);
  const LaunchShape shape{.warp_width = width()};
  const auto add_at = [p = memory.data()](int index) {
    return [p, index] { atomic_add(reinterpret_cast<std::uint64_t*>(p + index), 1U); };
  };
  EXPECT_THAT(fault_of(shape, add_at(2)), EndsWell());
  EXPECT_THAT(fault_of(shape, add_at(1)), Faults(FaultKind::kMisaligned, "an atomic operation"));
}

// A C++ atomic would go past the checks.
TEST_P(Bounds, StandardAtomics) {
  int memory = 0;
  const GlobalBuffer buffer(&memory, 4, "counter", Access::kReadWrite);
  EXPECT_THAT(
      fault_of({.warp_width = width()}, [p = &memory] { std::atomic_ref<int>(*p).fetch_add(1); }),
      Faults(FaultKind::kCheckFailed, "a C++ atomic in a kernel"));
}

#if QUIRE_HAS_ADDRESS_SANITIZER
// Without hooks the sanitizer stands guard over shared memory.
TEST(SanitizedBounds, SharedMemory) {
  const auto store_at = [](int index) {
    return [index] {
      QUIRE_SIMT_SHARED(int[4], numbers);
      int* const first = numbers;
      first[index] = 1;
    };
  };
  EXPECT_THAT(fault_of({}, store_at(3)), EndsWell());
  EXPECT_DEATH(fault_of({}, store_at(4)), "use-after-poison");
  const auto store_dynamic = [](int index) {
    return [index] { static_cast<int*>(dynamic_shared())[index] = 1; };
  };
  EXPECT_THAT(fault_of({.shared_bytes = 64}, store_dynamic(15)), EndsWell());
  EXPECT_DEATH(fault_of({.shared_bytes = 64}, store_dynamic(16)), "use-after-poison");
}
#endif

TEST(Buffers, OverlapIsRefused) {
  std::vector<char> memory(100);
  const GlobalBuffer middle(memory.data() + 40, 20, "middle", Access::kReadOnly);
  const auto add = [&](std::size_t begin, std::size_t bytes) {
    const GlobalBuffer other(memory.data() + begin, bytes, "other", Access::kReadOnly);
  };
  EXPECT_THROW(add(30, 11), Error);
  EXPECT_THROW(add(59, 1), Error);
  EXPECT_THROW(add(0, 100), Error);
  add(30, 10);
  add(60, 10);
  add(45, 0);
}

// A report names kernel, block, thread, address, buffer and the line of the access.
TEST(Reports, SayWhoWhereAndWhat) {
  QUIRE_SIMT_NEEDS_HOOKS();
  std::vector<int> memory(4);
  const GlobalBuffer buffer(memory.data(), 16, "table", Access::kReadWrite);
  const auto fault = fault_of({.grid = {1, 3}, .block = {8}}, [p = memory.data()] {
    if (block_idx().y == 2 && thread_idx().x >= 4) p[thread_idx().x] = 1;
  });
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, FaultKind::kOutOfBounds);
  EXPECT_EQ(fault->kernel, "test_kernel");
  EXPECT_EQ(fault->block, (Dim3{0, 2, 0}));
  EXPECT_EQ(fault->thread, (Dim3{4, 0, 0}));
  EXPECT_EQ(fault->address, reinterpret_cast<std::uintptr_t>(memory.data() + 4));
  EXPECT_EQ(fault->bytes, 4U);
  EXPECT_THAT(fault->message,
              testing::HasSubstr("out of bounds in kernel test_kernel, block (0,2,0), thread "
                                 "(4,0,0) (warp 0, lane 4): store of 4 bytes at 0x"));
  EXPECT_THAT(fault->where, testing::AnyOf(testing::HasSubstr("bounds_test.cc:"),
                                           testing::HasSubstr("emulator_tests+0x")));
}

INSTANTIATE_TEST_SUITE_P(BothWidths, Bounds, testing::Values(32, 64));
INSTANTIATE_TEST_SUITE_P(BothWidths, Limits, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
