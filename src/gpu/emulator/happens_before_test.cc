// SPDX-License-Identifier: Apache-2.0
// The compact clocks held to plain vector clocks, one full vector for every thread of the grid.
#include "gpu/emulator/happens_before.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace quire::simt::internal {
namespace {

// Threads are those of the grid. What a thread knows of another one is always its first events.
struct Event {
  int thread;
  int number;  // from 1
};

using Clock = std::vector<int>;  // [thread]: events that are known

void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

// What the rules of simt.h say, without any shortcut.
class PlainOrder {
 public:
  PlainOrder(int num_threads, int num_blocks) : num_threads_(num_threads) {
    const Clock nothing(static_cast<std::size_t>(num_threads * num_blocks));
    threads_.resize(nothing.size(), {nothing, nothing, nothing});
  }

  Event access(int block, int thread) {
    const int index = block * num_threads_ + thread;
    return {index, ++at(block, thread).known[static_cast<std::size_t>(index)]};
  }
  bool ordered(Event event, int block, int thread) {
    return event.number <= at(block, thread).known[static_cast<std::size_t>(event.thread)];
  }
  void sync(int block, const std::vector<int>& threads) {
    Thread joined = at(block, threads.front());
    for (const int thread : threads) {
      const Thread& other = at(block, thread);
      join(joined.known, other.known);
      join(joined.pending, other.pending);
      join(joined.released, other.released);
    }
    for (const int thread : threads) at(block, thread) = joined;
  }
  void fence(int block, int thread) {
    Thread& self = at(block, thread);
    join(self.known, self.pending);
    self.released = self.known;
  }
  void atomic(int block, int thread, std::uintptr_t address, Order order) {
    Thread& self = at(block, thread);
    Clock& published = published_.try_emplace(address, threads_.size()).first->second;
    const bool acquires = order == Order::kAcquire || order == Order::kAcquireRelease;
    const bool releases = order == Order::kRelease || order == Order::kAcquireRelease;
    join(acquires ? self.known : self.pending, published);
    join(published, releases ? self.known : self.released);
  }

 private:
  struct Thread {
    Clock known;
    Clock pending;
    Clock released;
  };
  Thread& at(int block, int thread) {
    return threads_[static_cast<std::size_t>(block * num_threads_ + thread)];
  }

  int num_threads_;
  std::vector<Thread> threads_;
  std::map<std::uintptr_t, Clock> published_;
};

struct Recorded {
  Stamp stamp;
  Event event;
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
  for (unsigned seed = 1; seed <= 40; ++seed) {
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
