// SPDX-License-Identifier: Apache-2.0
// The compact clocks held to plain vector clocks, one full vector for every thread of the grid.
#include "gpu/emulator/happens_before.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace quire::simt::internal {
namespace {

// An event is (thread of the grid, its number); a set of events is what a thread knows.
using Events = std::set<std::pair<int, int>>;

// What the rules of simt.h say, without any shortcut.
class PlainOrder {
 public:
  PlainOrder(int num_threads, int num_blocks)
      : threads_(static_cast<std::size_t>(num_threads * num_blocks)), num_threads_(num_threads) {}

  std::pair<int, int> access(int block, int thread) {
    Thread& self = at(block, thread);
    const std::pair<int, int> event{block * num_threads_ + thread, self.num_events++};
    self.known.insert(event);
    return event;
  }
  bool ordered(std::pair<int, int> event, int block, int thread) {
    return at(block, thread).known.contains(event);
  }
  void sync(int block, const std::vector<int>& threads) {
    Thread joined;
    for (const int thread : threads) {
      const Thread& other = at(block, thread);
      joined.known.insert(other.known.begin(), other.known.end());
      joined.pending.insert(other.pending.begin(), other.pending.end());
      joined.released.insert(other.released.begin(), other.released.end());
    }
    for (const int thread : threads) {
      Thread& other = at(block, thread);
      other.known = joined.known;
      other.pending = joined.pending;
      other.released = joined.released;
    }
  }
  void fence(int block, int thread) {
    Thread& self = at(block, thread);
    self.known.insert(self.pending.begin(), self.pending.end());
    self.pending.clear();
    self.released = self.known;
  }
  void atomic(int block, int thread, std::uintptr_t address, Order order) {
    Thread& self = at(block, thread);
    Events& published = published_[address];
    const bool acquires = order == Order::kAcquire || order == Order::kAcquireRelease;
    const bool releases = order == Order::kRelease || order == Order::kAcquireRelease;
    (acquires ? self.known : self.pending).insert(published.begin(), published.end());
    const Events& given = releases ? self.known : self.released;
    published.insert(given.begin(), given.end());
  }

 private:
  struct Thread {
    int num_events = 0;
    Events known;
    Events pending;
    Events released;
  };
  Thread& at(int block, int thread) {
    return threads_[static_cast<std::size_t>(block * num_threads_ + thread)];
  }

  std::vector<Thread> threads_;
  int num_threads_;
  std::map<std::uintptr_t, Events> published_;
};

struct Recorded {
  Stamp stamp;
  std::pair<int, int> event;
};

// Random accesses, barriers, fences and atomics of a few blocks, one block after another; after
// every step some earlier access is asked about from the view of some thread.
void compare(int warp_width, int num_threads, unsigned seed) {
  constexpr int kBlocks = 3;
  constexpr int kSteps = 150;
  std::mt19937 random(seed);
  const auto draw = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  HappensBefore compact(num_threads, warp_width);
  PlainOrder plain(num_threads, kBlocks);
  std::vector<Recorded> accesses;
  const int num_warps = (num_threads + warp_width - 1) / warp_width;
  for (int block = 0; block < kBlocks; ++block) {
    compact.begin_block(static_cast<std::uint32_t>(block) + 1);
    for (int step = 0; step < kSteps; ++step) {
      const int thread = draw(num_threads);
      switch (draw(8)) {
        case 0: {
          std::vector<int> all(static_cast<std::size_t>(num_threads));
          for (int i = 0; i < num_threads; ++i) all[static_cast<std::size_t>(i)] = i;
          if (draw(3) != 0) break;  // few, else everything is ordered
          compact.sync_block();
          plain.sync(block, all);
          break;
        }
        case 1: {
          const int warp = draw(num_warps);
          const int lanes = std::min(warp_width, num_threads - warp * warp_width);
          LaneMask mask = lanes == 64 ? kFullMask : (LaneMask{1} << lanes) - 1;
          if (draw(2) == 0) mask &= (LaneMask{random()} << 32) | random();
          if (mask == 0) break;
          std::vector<int> threads;
          for (int lane = 0; lane < lanes; ++lane) {
            if ((mask >> lane & 1) != 0) threads.push_back(warp * warp_width + lane);
          }
          compact.sync_warp(warp, mask);
          plain.sync(block, threads);
          break;
        }
        case 2:
          compact.fence(thread, Scope::kDevice);
          plain.fence(block, thread);
          break;
        case 3: {
          const auto address = static_cast<std::uintptr_t>(8 * draw(3));
          const auto order = static_cast<Order>(draw(4));
          compact.atomic(thread, address, {.order = order});
          plain.atomic(block, thread, address, order);
          break;
        }
        default:
          accesses.push_back({compact.now(thread), plain.access(block, thread)});
      }
      if (accesses.empty()) continue;
      const Recorded& earlier =
          accesses[static_cast<std::size_t>(draw(static_cast<int>(accesses.size())))];
      const int asker = draw(num_threads);
      ASSERT_EQ(compact.ordered(earlier.stamp, asker), plain.ordered(earlier.event, block, asker))
          << "seed " << seed << " block " << block << " step " << step;
    }
  }
}

TEST(HappensBefore, AgreesWithPlainVectorClocks) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    compare(32, 40, seed);
    compare(32, 7, seed);
    compare(64, 70, seed);
  }
}

// fence_block: for the threads of the block, not for others.
TEST(HappensBefore, FencesOfABlock) {
  HappensBefore order(64, 32);
  order.begin_block(1);
  const Stamp store = order.now(0);
  order.fence(0, Scope::kBlock);
  order.atomic(0, 16, {});
  order.atomic(40, 16, {});
  EXPECT_FALSE(order.ordered(store, 40));
  order.fence(40, Scope::kBlock);
  EXPECT_TRUE(order.ordered(store, 40));
  order.begin_block(2);
  order.atomic(5, 16, {});
  order.fence(5, Scope::kDevice);
  EXPECT_FALSE(order.ordered(store, 5));
}

// A plain atomic store ends what others published before it; an update carries it on.
TEST(HappensBefore, StoresEndAChainOfUpdates) {
  for (const bool update : {false, true}) {
    HappensBefore order(64, 32);
    order.begin_block(1);
    const Stamp store = order.now(0);
    order.atomic(0, 16, {.order = Order::kRelease});
    order.atomic(20, 16, {.reads = update});
    order.atomic(40, 16, {.writes = false, .order = Order::kAcquire});
    EXPECT_EQ(order.ordered(store, 40), update);
  }
}

}  // namespace
}  // namespace quire::simt::internal
