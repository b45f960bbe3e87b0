// SPDX-License-Identifier: Apache-2.0
// Kernels with a missing barrier, fence or atomic, each beside a twin that has it. The verdict must
// not depend on the order in which the threads happen to run, so every case runs in several.
#include <cstdint>
#include <vector>

#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

class Races : public WarpWidths {
 protected:
  void SetUp() override { QUIRE_SIMT_NEEDS_HOOKS(); }

  template <class Kernel>
  void expect_race(const LaunchShape& shape, const Kernel& kernel, const char* text = "") const {
    for (const std::uint64_t seed : {0, 1, 2, 3, 4}) {
      EXPECT_THAT(fault_of(shape, kernel, {.seed = seed}), Faults(FaultKind::kRace, text))
          << "seed " << seed;
    }
  }
  template <class Kernel>
  void expect_none(const LaunchShape& shape, const Kernel& kernel) const {
    for (const std::uint64_t seed : {0, 1, 2, 3, 4}) {
      EXPECT_THAT(fault_of(shape, kernel, {.seed = seed}), EndsWell()) << "seed " << seed;
    }
  }
};

int* shared_ints() {
  return static_cast<int*>(dynamic_shared());
}
int thread() {
  return static_cast<int>(thread_idx().x);
}
int num_threads() {
  return static_cast<int>(block_dim().x);
}

TEST_P(Races, LoadAfterStoreNeedsABarrier) {
  const auto kernel = [](bool barrier) {
    return [barrier] {
      int* const numbers = shared_ints();
      numbers[thread()] = thread();
      if (barrier) sync_threads();
      const int other = num_threads() - 1 - thread();
      // Without the barrier the thread that runs first reads what nobody wrote; that is seen too,
      // but here the race is meant.
      check(numbers[other] == other || !barrier, "the other's number");
    };
  };
  const LaunchShape shape = two_warps(1024);
  expect_none(shape, kernel(true));
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_THAT(fault_of(shape, kernel(false), {.seed = seed, .check_uninitialised_shared = false}),
                Faults(FaultKind::kRace, "dynamic shared memory"));
    EXPECT_TRUE(fault_of(shape, kernel(false), {.seed = seed}).has_value());
  }
}

TEST_P(Races, StoreAfterLoadNeedsABarrier) {
  const auto kernel = [](bool barrier) {
    return [barrier] {
      int* const numbers = shared_ints();
      for (int round = 0; round < 3; ++round) {
        numbers[thread()] = round;
        sync_threads();
        check(numbers[(thread() + warp_width()) % num_threads()] <= 3, "a round");
        if (barrier) sync_threads();
      }
    };
  };
  expect_none(two_warps(1024), kernel(true));
  expect_race(two_warps(1024), kernel(false));
}

TEST_P(Races, TwoStores) {
  const auto kernel = [](bool one) {
    return [one] {
      QUIRE_SIMT_SHARED(int, value);
      if (one ? thread() == 0 : lane_id() == 0) value = 1;
      sync_threads();
      check(value == 1, "the value");
    };
  };
  expect_none(two_warps(), kernel(true));
  expect_race(two_warps(), kernel(false), "not ordered after the store by thread");
}

TEST_P(Races, NeighbouringBytesAreNotOneWord) {
  const auto kernel = [](int stride) {
    return [stride] {
      auto* const bytes = static_cast<unsigned char*>(dynamic_shared());
      bytes[thread() * stride] = 1;
      if (stride == 0) bytes[thread()] = 2;
    };
  };
  expect_none(two_warps(1024), kernel(1));
  expect_race(two_warps(1024), kernel(0));
}

TEST_P(Races, LanesOfAWarpNeedSyncWarp) {
  const auto kernel = [](bool barrier) {
    return [barrier] {
      int* const numbers = shared_ints();
      numbers[thread()] = thread();
      if (barrier) sync_warp();
      check(shuffle(numbers[thread()], 0) >= 0, "shuffles order nothing");
      const int other = thread() ^ 1;
      check(numbers[other] == other, "the neighbour's number");
    };
  };
  expect_none(two_warps(1024), kernel(true));
  expect_race(two_warps(1024), kernel(false));
}

TEST_P(Races, SyncWarpOrdersNothingBetweenWarps) {
  const auto kernel = [](bool whole_block) {
    return [whole_block] {
      int* const numbers = shared_ints();
      numbers[thread()] = thread();
      if (whole_block) sync_threads();
      sync_warp();
      const int other = (thread() + warp_width()) % num_threads();
      check(numbers[other] == other || !whole_block, "the other warp's number");
    };
  };
  expect_none(two_warps(1024), kernel(true));
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_THAT(fault_of(two_warps(1024), kernel(false),
                         {.seed = seed, .check_uninitialised_shared = false}),
                Faults(FaultKind::kRace, ""));
  }
}

TEST_P(Races, PartialMasksOrderTheirLanesAlone) {
  const auto kernel = [](int distance) {
    return [distance] {
      int* const numbers = shared_ints();
      const LaneMask lower = (LaneMask{1} << (warp_width() / 2)) - 1;
      const LaneMask mask = lane_id() < warp_width() / 2 ? lower : ~lower;
      for (int round = 0; round < 3; ++round) {
        numbers[lane_id()] = round;
        sync_warp(mask);
        check(numbers[lane_id() ^ distance] == round || distance != 1, "another lane's number");
        sync_warp(mask);
      }
    };
  };
  expect_none(one_warp(1024), kernel(1));
  const int other_half = width() / 2;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_THAT(fault_of(one_warp(1024), kernel(other_half),
                         {.seed = seed, .check_uninitialised_shared = false}),
                Faults(FaultKind::kRace, ""));
  }
}

TEST_P(Races, AtomicsRaceWithPlainAccesses) {
  const auto kernel = [](bool barrier) {
    return [barrier] {
      QUIRE_SIMT_SHARED(int, count);
      if (thread() == 0) count = 0;
      sync_threads();
      atomic_add(&count, 1);
      if (barrier) sync_threads();
      if (thread() == 5) check(count > 0, "a plain load");
    };
  };
  expect_none(two_warps(), kernel(true));
  expect_race(two_warps(), kernel(false), "count");
}

TEST_P(Races, GlobalMemoryWithinABlock) {
  std::vector<int> memory(256);
  const GlobalBuffer buffer(memory.data(), 1024, "out", Access::kReadWrite);
  const auto kernel = [p = memory.data()](bool barrier) {
    return [p, barrier] {
      p[thread()] = 1;
      if (barrier) sync_threads();
      p[num_threads() - 1 - thread()] += 1;
    };
  };
  expect_none(two_warps(), kernel(true));
  expect_race(two_warps(), kernel(false), "bytes into out");
}

TEST_P(Races, BlocksStoreApart) {
  std::vector<int> memory(1024);
  const GlobalBuffer buffer(memory.data(), 4096, "out", Access::kReadWrite);
  const auto kernel = [p = memory.data()](std::uint32_t stride) {
    return [p, stride] { p[block_idx().x * stride + thread_idx().x] = 1; };
  };
  const LaunchShape shape = two_warps(0, 3);
  expect_none(shape, kernel(2 * static_cast<std::uint32_t>(width())));
  expect_race(shape, kernel(1), "bytes into out");
}

TEST_P(Races, BlocksDoNotReadWhatOthersStore) {
  std::vector<int> memory(16);
  const GlobalBuffer buffer(memory.data(), 64, "out", Access::kReadWrite);
  const auto kernel = [p = memory.data()](std::uint32_t distance) {
    return [p, distance] {
      p[block_idx().x] = 1;
      check(p[(block_idx().x + distance) % grid_dim().x] >= 0, "a number");
    };
  };
  const LaunchShape shape{.grid = {4}, .warp_width = width()};
  expect_none(shape, kernel(0));
  expect_race(shape, kernel(1), "bytes into out");
}

// What the merge of partial results by the last block needs, one piece left out at a time.
struct Merge {
  bool release = true;  // the fence between the store and the count
  bool barrier = true;  // all threads have stored before one counts
  bool acquire = true;  // the fence between the count and the loads
  bool device = true;   // fences for other blocks, not for this one
  bool one_thread_fences = false;
};

TEST_P(Races, LastArriverNeedsEveryPiece) {
  std::vector<int> memory(std::size_t{4} * 128);
  int counter = 0;
  const GlobalBuffer partials(memory.data(), memory.size() * 4, "partials", Access::kReadWrite);
  const GlobalBuffer count(&counter, 4, "counter", Access::kReadWrite);
  const auto kernel = [p = memory.data(), c = &counter](Merge merge) {
    return [p, c, merge] {
      QUIRE_SIMT_SHARED(bool, last);
      const auto fence = [&] { merge.device ? fence_device() : fence_block(); };
      p[static_cast<int>(block_idx().x) * num_threads() + thread()] = thread();
      if (merge.release && !merge.one_thread_fences) fence();
      if (merge.barrier) sync_threads();
      if (thread() == 0) {
        if (merge.release && merge.one_thread_fences) fence();
        last = atomic_add(c, 1) == static_cast<int>(grid_dim().x) - 1;
        if (last) *c = 0;
        if (merge.acquire && merge.one_thread_fences) fence();
      }
      sync_threads();
      if (!last) return;
      if (merge.acquire && !merge.one_thread_fences) fence();
      for (int i = 0; i < static_cast<int>(grid_dim().x); ++i) {
        check(p[i * num_threads() + num_threads() - 1 - thread()] == num_threads() - 1 - thread(),
              "a partial result");
      }
    };
  };
  const LaunchShape shape = two_warps(0, 4);
  const auto reset = [&] { counter = 0; };
  expect_none(shape, kernel({}));
  expect_none(shape, kernel({.one_thread_fences = true}));
  for (const Merge& merge :
       {Merge{.release = false}, Merge{.barrier = false}, Merge{.acquire = false},
        Merge{.device = false}, Merge{.release = false, .one_thread_fences = true},
        Merge{.acquire = false, .one_thread_fences = true}}) {
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      reset();
      EXPECT_THAT(fault_of(shape, kernel(merge), {.seed = seed}),
                  Faults(FaultKind::kRace, "bytes into partials"))
          << "release " << merge.release << " barrier " << merge.barrier << " acquire "
          << merge.acquire << " device " << merge.device;
    }
  }
}

// Release and acquire on the atomics themselves do without fences.
TEST_P(Races, OrderedAtomics) {
  std::vector<int> memory(4);
  const auto kernel = [p = memory.data()](Order store, Order load) {
    return [=] {
      if (block_idx().x == 0) {
        p[0] = 7;
        atomic_store(&p[1], 1, store);
      } else if (atomic_load(&p[1], load) == 1) {
        check(p[0] == 7, "published");
      }
    };
  };
  const GlobalBuffer buffer(memory.data(), 16, "flags", Access::kReadWrite);
  const LaunchShape shape{.grid = {2}, .warp_width = width()};
  const auto fault = [&](Order store, Order load) {
    memory.assign(4, 0);
    return fault_of(shape, kernel(store, load));
  };
  EXPECT_THAT(fault(Order::kRelease, Order::kAcquire), EndsWell());
  EXPECT_THAT(fault(Order::kRelaxed, Order::kAcquire), Faults(FaultKind::kRace, "flags"));
  EXPECT_THAT(fault(Order::kRelease, Order::kRelaxed), Faults(FaultKind::kRace, "flags"));
}

// A race is told from both sides, with the lines of both.
TEST_P(Races, ReportsNameBothAccesses) {
  const auto fault = fault_of(two_warps(), [] {
    QUIRE_SIMT_SHARED(int, value);
    if (thread() == 1) value = 1;
    if (thread() == 3) value = 3;
  });
  ASSERT_TRUE(fault.has_value());
  EXPECT_THAT(fault->message, testing::HasSubstr("thread (3,0,0) (warp 0, lane 3): store of 4 "));
  EXPECT_THAT(fault->message, testing::HasSubstr("not ordered after the store by thread (1,0,0)"));
  EXPECT_EQ(fault->thread, (Dim3{3, 0, 0}));
}

INSTANTIATE_TEST_SUITE_P(BothWidths, Races, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
