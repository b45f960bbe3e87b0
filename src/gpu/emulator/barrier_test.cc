// SPDX-License-Identifier: Apache-2.0
// Kernels whose threads do not meet where they should, each beside a twin whose threads do.
#include <bit>
#include <stdexcept>

#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

class Barriers : public WarpWidths {};

int thread() {
  return static_cast<int>(thread_idx().x);
}

TEST_P(Barriers, ThreadsThatLeaveBeforeABarrier) {
  const auto kernel = [](int leaving) {
    return [leaving] {
      if (thread() == leaving) return;
      sync_threads();
    };
  };
  EXPECT_THAT(fault_of(two_warps(), kernel(-1)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(0)),
              Faults(FaultKind::kDivergentBarrier, "thread 0 left the kernel"));
  for (const std::uint64_t seed : {0, 1, 2}) {
    EXPECT_THAT(fault_of(two_warps(), kernel(9), {.seed = seed}),
                Faults(FaultKind::kDivergentBarrier, "at sync_threads (barrier_test.cc:"));
  }
}

TEST_P(Barriers, AllThreadsMayLeave) {
  EXPECT_THAT(fault_of(two_warps(0, 3),
                       [] {
                         if (block_idx().x == 1) return;
                         sync_threads();
                       }),
              EndsWell());
}

TEST_P(Barriers, DifferentBarriers) {
  const auto kernel = [](int border) {
    return [border] {
      if (thread() < border) {
        sync_threads();
      } else {
        sync_threads();
      }
    };
  };
  EXPECT_THAT(fault_of(two_warps(), kernel(0)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(1000)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(width())),
              Faults(FaultKind::kDivergentBarrier, "at sync_threads"));
  EXPECT_THAT(fault_of(two_warps(), kernel(3)),
              Faults(FaultKind::kDivergentBarrier, "threads 0-2 at sync_threads"));
}

TEST_P(Barriers, UnequalNumbersOfTheSameBarrier) {
  const auto kernel = [](int extra) {
    return [extra] {
      const int rounds = warp_id() == 0 ? 2 : 2 + extra;
      for (int i = 0; i < rounds; ++i) sync_threads();
    };
  };
  EXPECT_THAT(fault_of(two_warps(), kernel(0)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(1)),
              Faults(FaultKind::kDivergentBarrier, "left the kernel"));
}

TEST_P(Barriers, LanesThatNeverComeToSyncWarp) {
  const auto kernel = [](LaneMask mask) {
    return [mask] {
      if (lane_id() < 8) sync_warp(mask);
      sync_threads();
    };
  };
  EXPECT_THAT(fault_of(two_warps(), kernel(0xff)), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(0x1ff)),
              Faults(FaultKind::kDivergentCollective, "threads 0-7"));
  EXPECT_THAT(fault_of(two_warps(), kernel(0x1ff)),
              Faults(FaultKind::kDivergentCollective, "in sync_warp with mask 0x1ff"));
}

TEST_P(Barriers, LanesThatLeftTheKernel) {
  const auto kernel = [](int leaving) {
    return [leaving] {
      if (lane_id() == leaving) return;
      any(true);
    };
  };
  EXPECT_THAT(fault_of(one_warp(), kernel(-1)), EndsWell());
  for (const int leaving : {0, 7}) {
    EXPECT_THAT(fault_of(one_warp(), kernel(leaving)),
                Faults(FaultKind::kDivergentCollective, "left the kernel"));
  }
}

TEST_P(Barriers, MasksThatDisagree) {
  const auto kernel = [](LaneMask of_first) {
    return [of_first] {
      if (lane_id() < 2) ballot(true, lane_id() == 0 ? of_first : 0x3);
    };
  };
  EXPECT_THAT(fault_of(one_warp(), kernel(0x3)), EndsWell());
  EXPECT_THAT(fault_of(one_warp(), kernel(0x1)),
              Faults(FaultKind::kDivergentCollective, "in ballot with mask 0x3"));
}

TEST_P(Barriers, DifferentOperations) {
  const auto kernel = [](bool same) {
    return [same] {
      if (lane_id() == 0 || same) {
        shuffle(1, 0);
      } else {
        ballot(true);
      }
    };
  };
  EXPECT_THAT(fault_of(one_warp(), kernel(true)), EndsWell());
  EXPECT_THAT(fault_of(one_warp(), kernel(false)),
              Faults(FaultKind::kDivergentCollective, "thread 0 in shuffle"));
}

TEST_P(Barriers, AMaskWithoutItsCaller) {
  EXPECT_THAT(fault_of(one_warp(), [] { any(true, 0x7); }),
              Faults(FaultKind::kInactiveLane, "lacks the caller's lane 3"));
  EXPECT_THAT(fault_of(one_warp(),
                       [] {
                         if (lane_id() < 3) any(true, 0x7);
                       }),
              EndsWell());
}

TEST_P(Barriers, ShufflesFromLanesThatTakeNoPart) {
  const auto kernel = [](int distance) {
    return [distance] {
      if (lane_id() < 4) shuffle_xor(1.0F, distance, 0xf);
    };
  };
  EXPECT_THAT(fault_of(one_warp(), kernel(3)), EndsWell());
  EXPECT_THAT(fault_of(one_warp(), kernel(4)),
              Faults(FaultKind::kInactiveLane, "shuffle from lane 4"));
}

// Half of a warp at the barrier of the block, half at that of the warp.
TEST_P(Barriers, TwoKindsOfBarrier) {
  EXPECT_THAT(fault_of(one_warp(),
                       [] {
                         if (lane_id() % 2 == 0) {
                           sync_threads();
                         } else {
                           sync_warp();
                         }
                       }),
              Faults(FaultKind::kDivergentCollective, "in sync_warp with mask"));
}

TEST_P(Barriers, WarpsNeedNotBeFull) {
  const auto threads = static_cast<std::uint32_t>(width() + 5);
  EXPECT_THAT(fault_of({.block = {threads}, .warp_width = width()},
                       [] {
                         const int lanes = warp_id() == 0 ? warp_width() : 5;
                         check(std::popcount(ballot(true)) == lanes, "lanes that exist");
                         sync_warp();
                         sync_threads();
                       }),
              EndsWell());
}

TEST_P(Barriers, AHang) {
  const auto kernel = [](bool set) {
    return [set] {
      QUIRE_SIMT_SHARED(int, flag);
      if (thread() == 0) atomic_store(&flag, 0);
      sync_threads();
      if (thread() == 1 && set) atomic_store(&flag, 1);
      if (thread() == 0) {
        while (atomic_load(&flag) == 0) {
        }
      }
    };
  };
  const LaunchOptions options{.max_spins = 1000};
  EXPECT_THAT(fault_of(two_warps(), kernel(true), options), EndsWell());
  EXPECT_THAT(fault_of(two_warps(), kernel(false), options),
              Faults(FaultKind::kHang, "found the same value 1001 times"));
}

TEST_P(Barriers, ExceptionsAndChecks) {
  EXPECT_THAT(fault_of(two_warps(),
                       [] {
                         if (thread() == 7) throw std::runtime_error("seven");
                       }),
              Faults(FaultKind::kException, "the kernel threw: seven"));
  const auto fault = fault_of(two_warps(), [] { check(thread() < 9, "few threads"); });
  EXPECT_THAT(fault, Faults(FaultKind::kCheckFailed, "few threads"));
  EXPECT_EQ(fault->thread, (Dim3{9, 0, 0}));
  EXPECT_THAT(fault->where, testing::StartsWith("barrier_test.cc:"));
}

// A launch after a fault starts with clean threads.
TEST_P(Barriers, ALaunchAfterAFault) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(fault_of(two_warps(),
                         [] {
                           sync_warp();
                           check(thread() != 11, "not this one");
                           sync_threads();
                         }),
                Faults(FaultKind::kCheckFailed, "not this one"));
    EXPECT_THAT(fault_of(two_warps(), [] { sync_threads(); }), EndsWell());
  }
}

INSTANTIATE_TEST_SUITE_P(BothWidths, Barriers, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
