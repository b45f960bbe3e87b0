// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies used right and wrong.
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

class AsyncCopies : public WarpWidths {
 protected:
  AsyncCopies() { std::iota(source_.begin(), source_.end(), 0); }

  const int* source() const { return source_.data(); }
  LaunchShape one_thread() const { return {.shared_bytes = 1024, .warp_width = width()}; }

 private:
  alignas(16) std::array<int, 1024> source_{};
  GlobalBuffer buffer_{source_.data(), sizeof(source_), "source", Access::kReadOnly};
};

int* tile() {
  return static_cast<int*>(dynamic_shared());
}
int thread() {
  return static_cast<int>(thread_idx().x);
}

// Three stages of a ring, each thread copying 16 bytes of every stage.
TEST_P(AsyncCopies, APipelineComputesWhatItShould) {
  constexpr int kStages = 3;
  constexpr int kRounds = 7;
  std::vector<int> sums(128);
  const GlobalBuffer out(sums.data(), sums.size() * 4, "sums", Access::kReadWrite);
  const auto kernel = [from = source(), to = sums.data()] {
    const int threads = static_cast<int>(block_dim().x);
    const auto load = [&](int round) {
      if (round < kRounds) {
        copy_async(tile() + (round % kStages) * threads * 4 + thread() * 4,
                   from + (round * threads + thread()) % 128 * 4, 16, 16);
      }
      copy_async_commit();
    };
    load(0);
    load(1);
    int sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      copy_async_wait(kStages - 2);
      sync_threads();
      load(round + 2);
      const int* const stage = tile() + (round % kStages) * threads * 4;
      for (int i = 0; i < 4; ++i) sum += stage[(threads - 1 - thread()) * 4 + i];
    }
    to[thread()] = sum;
  };
  const int threads = 2 * width();
  for (const std::uint64_t seed : {0, 1, 2}) {
    launch("pipeline", two_warps(static_cast<std::size_t>(kStages * threads) * 16), kernel,
           {.seed = seed});
    for (int t = 0; t < threads; ++t) {
      int expected = 0;
      for (int round = 0; round < kRounds; ++round) {
        const int first = (round * threads + threads - 1 - t) % 128 * 4;
        expected += 4 * first + 6;
      }
      EXPECT_EQ(sums[static_cast<std::size_t>(t)], expected);
    }
  }
}

TEST_P(AsyncCopies, MissingBytesBecomeZeros) {
  launch("zeros", one_thread(), [from = source()] {
    copy_async(tile(), from + 4, 16, 8);
    copy_async(tile() + 4, nullptr, 8, 0);
    copy_async_commit();
    copy_async_wait(0);
    check(tile()[0] == 4 && tile()[1] == 5, "what was there");
    check(tile()[2] == 0 && tile()[3] == 0, "the rest");
    check(tile()[4] == 0 && tile()[5] == 0, "nothing at all");
  });
}

// Without hooks too: the bytes come at the wait and not before.
TEST_P(AsyncCopies, BytesArriveAtTheWait) {
  const auto kernel = [from = source()](int groups_left, int expected) {
    return [=] {
      for (int i = 0; i < 3; ++i) {
        copy_async(tile() + i, from + 1 + i, 4, 4);
        copy_async_commit();
      }
      copy_async_wait(groups_left);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      int arrived = 0;
      for (int i = 0; i < 3 - groups_left; ++i) arrived += tile()[i];
      check(arrived == expected, "the groups that are over");
      if (!hooks_present()) check(groups_left == 0 || tile()[2] == -1, "the group that is not");
    };
  };
  EXPECT_THAT(fault_of(one_thread(), kernel(0, 6)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(1, 3)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(2, 1)), EndsWell());
}

TEST_P(AsyncCopies, LoadsBeforeTheWait) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto kernel = [from = source()](int groups_left) {
    return [=] {
      copy_async(tile(), from, 4, 4);
      copy_async_commit();
      copy_async_wait(groups_left);
      check(tile()[0] == 0, "the number");
    };
  };
  EXPECT_THAT(fault_of(one_thread(), kernel(0)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(1)), Faults(FaultKind::kAsyncPending, "load of 4"));
}

TEST_P(AsyncCopies, AWaitWithoutACommit) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto kernel = [from = source()](bool commit) {
    return [=] {
      copy_async(tile(), from, 4, 4);
      if (commit) copy_async_commit();
      copy_async_wait(0);
      check(tile()[0] == 0, "the number");
    };
  };
  EXPECT_THAT(fault_of(one_thread(), kernel(true)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(false)),
              Faults(FaultKind::kAsyncPending, "copy issued"));
}

TEST_P(AsyncCopies, StoresBeforeTheWait) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto kernel = [from = source()](bool wait, bool again) {
    return [=] {
      copy_async(tile(), from, 4, 4);
      copy_async_commit();
      if (wait) copy_async_wait(0);
      if (again) {
        copy_async(tile(), from + 1, 4, 4);
      } else {
        tile()[0] = 1;
      }
    };
  };
  EXPECT_THAT(fault_of(one_thread(), kernel(true, false)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(true, true)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(false, false)),
              Faults(FaultKind::kAsyncPending, "store of 4"));
  EXPECT_THAT(fault_of(one_thread(), kernel(false, true)),
              Faults(FaultKind::kAsyncPending, "store of 4"));
}

// The wait is for the thread that copied; the others need a barrier after it.
TEST_P(AsyncCopies, OtherThreadsNeedABarrierAfterTheWait) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto kernel = [from = source()](bool barrier) {
    return [=] {
      tile()[thread()] = 0;
      sync_threads();
      copy_async(tile() + thread(), from + thread(), 4, 4);
      copy_async_commit();
      copy_async_wait(0);
      if (barrier) sync_threads();
      check(tile()[thread() ^ 1] == (thread() ^ 1) || !barrier, "the neighbour's number");
    };
  };
  EXPECT_THAT(fault_of(two_warps(1024), kernel(true)), EndsWell());
  for (const std::uint64_t seed : {0, 1, 2}) {
    const auto fault = fault_of(two_warps(1024), kernel(false), {.seed = seed});
    ASSERT_TRUE(fault.has_value());
    EXPECT_THAT(fault->kind, testing::AnyOf(FaultKind::kRace, FaultKind::kAsyncPending));
  }
}

// The bytes may arrive at once, so nobody may still be reading what was there.
TEST_P(AsyncCopies, TheIssueNeedsABarrierAfterLoadsOfOthers) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto kernel = [from = source()](bool barrier) {
    return [=] {
      tile()[thread()] = 0;
      sync_threads();
      check(tile()[thread() ^ 1] == 0, "the neighbour's number");
      if (barrier) sync_threads();
      copy_async(tile() + thread(), from + thread(), 4, 4);
      copy_async_commit();
      copy_async_wait(0);
    };
  };
  EXPECT_THAT(fault_of(two_warps(1024), kernel(true)), EndsWell());
  for (const std::uint64_t seed : {0, 1, 2}) {
    const auto fault = fault_of(two_warps(1024), kernel(false), {.seed = seed});
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->kind, FaultKind::kRace);
  }
}

// Barriers or not: the copy may read the source at its issue, at its wait, or between them.
TEST_P(AsyncCopies, TheSourceMustNotChangeUnderWay) {
  std::vector<int> memory(4);
  const GlobalBuffer buffer(memory.data(), 16, "memory", Access::kReadWrite);
  const auto kernel = [p = memory.data()](int when) {
    return [=] {
      if (thread() == 0) {
        copy_async(tile(), p, 4, 4);
        copy_async_commit();
      }
      sync_warp();
      if (thread() == 1 && when == 1) *p = 1;
      sync_warp();
      if (thread() == 0) copy_async_wait(0);
      sync_warp();
      if (thread() == 1 && when == 2) *p = 2;
    };
  };
  EXPECT_THAT(fault_of(one_warp(1024), kernel(2)), EndsWell());
  EXPECT_THAT(fault_of(one_warp(1024), kernel(1)),
              Faults(FaultKind::kAsyncPending, "the source of an asynchronous copy changed"));
}

TEST_P(AsyncCopies, Addresses) {
  const auto kernel = [from = source()](std::ptrdiff_t to, std::ptrdiff_t offset) {
    return [=] {
      copy_async(static_cast<char*>(dynamic_shared()) + to,
                 reinterpret_cast<const char*>(from) + offset, 16, 16);
    };
  };
  EXPECT_THAT(fault_of(one_thread(), kernel(0, 0)), EndsWell());
  EXPECT_THAT(fault_of(one_thread(), kernel(0, 4096)),
              Faults(FaultKind::kOutOfBounds, "0 bytes past the end of source"));
  EXPECT_THAT(fault_of(one_thread(), kernel(1024, 0)),
              Faults(FaultKind::kOutOfBounds, "past the end of dynamic shared memory"));
  EXPECT_THAT(fault_of(one_thread(), kernel(8, 0)),
              Faults(FaultKind::kMisaligned, "the destination"));
  EXPECT_THAT(fault_of(one_thread(), kernel(0, 8)), Faults(FaultKind::kMisaligned, "the source"));
  EXPECT_THAT(fault_of(one_thread(),
                       [from = source()] { copy_async(const_cast<int*>(from), from + 4, 16, 16); }),
              Faults(FaultKind::kOutOfBounds, "not in shared memory"));
  EXPECT_THAT(fault_of(one_thread(), [] { copy_async(tile(), tile() + 4, 16, 16); }),
              Faults(FaultKind::kOutOfBounds, "is in shared memory"));
  EXPECT_THAT(fault_of(one_thread(), [from = source()] { copy_async(tile(), from, 8, 9); }),
              Faults(FaultKind::kOutOfBounds, "9 bytes into 8"));
}

INSTANTIATE_TEST_SUITE_P(BothWidths, AsyncCopies, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
