// SPDX-License-Identifier: Apache-2.0
// Kernels as they are written for GPUs, held to plain loops, in several orders of their threads.
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

class Kernels : public WarpWidths {
 protected:
  static constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3};
};

std::vector<std::int32_t> random_numbers(std::size_t count, std::int32_t limit) {
  std::mt19937 random(7);
  std::vector<std::int32_t> numbers(count);
  for (std::int32_t& number : numbers) {
    number = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(limit));
  }
  return numbers;
}

TEST_P(Kernels, IndicesCoverGridAndBlock) {
  const Dim3 grid{3, 2, 2};
  const Dim3 block{5, 4, 3};
  std::vector<std::uint32_t> seen(std::size_t{3 * 2 * 2} * 60);
  const GlobalBuffer buffer(seen.data(), seen.size() * 4, "seen", Access::kReadWrite);
  std::uint32_t* const out = seen.data();  // [block, thread]
  const auto kernel = [out] {
    const Dim3 b = block_idx();
    const Dim3 t = thread_idx();
    const std::uint32_t block_linear = (b.z * grid_dim().y + b.y) * grid_dim().x + b.x;
    const std::uint32_t thread = (t.z * block_dim().y + t.y) * block_dim().x + t.x;
    check(static_cast<int>(thread) == warp_id() * warp_width() + lane_id(), "warp and lane");
    out[block_linear * 60 + thread] += 1;
  };
  launch("indices", {.grid = grid, .block = block, .warp_width = width()}, kernel);
  EXPECT_EQ(seen, std::vector<std::uint32_t>(seen.size(), 1));
}

TEST_P(Kernels, BlockReductionThroughSharedMemory) {
  const auto in = random_numbers(1000, 1000);
  std::int64_t sum = 0;
  const GlobalBuffer in_buffer(in.data(), in.size() * 4, "in", Access::kReadOnly);
  const GlobalBuffer sum_buffer(&sum, sizeof(sum), "sum", Access::kReadWrite);
  const auto kernel = [data = in.data(), count = in.size(), out = &sum] {
    auto* const sums = static_cast<std::int64_t*>(dynamic_shared());  // [threads]
    const std::uint32_t thread = thread_idx().x;
    std::int64_t own = 0;
    for (std::size_t i = thread; i < count; i += block_dim().x) own += data[i];
    sums[thread] = own;
    for (std::uint32_t half = block_dim().x / 2; half > 0; half /= 2) {
      sync_threads();
      if (thread < half) sums[thread] += sums[thread + half];
    }
    if (thread == 0) *out = sums[0];
  };
  for (const std::uint64_t seed : kSeeds) {
    sum = 0;
    launch("reduce", two_warps(std::size_t{2} * 64 * 8), kernel, {.seed = seed});
    EXPECT_EQ(sum, std::accumulate(in.begin(), in.end(), std::int64_t{0}));
  }
}

TEST_P(Kernels, WarpScanByShuffles) {
  const auto in = random_numbers(64, 100);
  std::vector<std::int32_t> out(64);
  const GlobalBuffer in_buffer(in.data(), in.size() * 4, "in", Access::kReadOnly);
  const GlobalBuffer out_buffer(out.data(), out.size() * 4, "out", Access::kReadWrite);
  const auto kernel = [from = in.data(), to = out.data()] {
    const std::uint32_t thread = thread_idx().x;
    std::int32_t sum = from[thread];
    for (int step = 1; step < warp_width(); step *= 2) {
      const std::int32_t other = shuffle_up(sum, step);
      if (lane_id() >= step) sum += other;
    }
    to[thread] = sum;
  };
  for (const std::uint64_t seed : kSeeds) {
    launch("scan", {.block = {64}, .warp_width = width()}, kernel, {.seed = seed});
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t warp_begin =
          i / static_cast<std::size_t>(width()) * static_cast<std::size_t>(width());
      EXPECT_EQ(out[i], std::accumulate(in.begin() + static_cast<std::ptrdiff_t>(warp_begin),
                                        in.begin() + static_cast<std::ptrdiff_t>(i) + 1, 0));
    }
  }
}

TEST_P(Kernels, ShufflesAndVotesOfEveryKind) {
  launch("shuffles", one_warp(), [] {
    const int lane = lane_id();
    const int w = warp_width();
    const double value = 10.0 * lane;
    check(shuffle(value, 3) == 30.0, "index");
    check(shuffle(value, w + 1) == 10.0, "index beyond the warp wraps");
    check(shuffle_xor(value, 5) == 10.0 * (lane ^ 5), "xor");
    check(shuffle_up(value, 2) == 10.0 * (lane < 2 ? lane : lane - 2), "up");
    check(shuffle_down(value, 2) == 10.0 * (lane + 2 < w ? lane + 2 : lane), "down");
    check(shuffle(static_cast<std::uint32_t>(lane), 7) == 7U, "32 bits");
    check(ballot(lane % 3 == 0) % 16 == 9, "ballot");
    check(any(lane == 5) && !any(lane > w), "any");
    check(all(lane < w) && !all(lane != 5), "all");
    if (lane < 4) {
      check(shuffle(value, lane ^ 1, 0xf) == 10.0 * (lane ^ 1), "some lanes");
      check(all(true, 0xf), "vote of some lanes");
    }
  });
}

TEST_P(Kernels, HistogramByAtomics) {
  constexpr std::int32_t kBins = 16;
  const auto in = random_numbers(2000, kBins);
  std::vector<std::int32_t> bins(kBins);
  std::int32_t largest = 0;
  const GlobalBuffer in_buffer(in.data(), in.size() * 4, "in", Access::kReadOnly);
  const GlobalBuffer bins_buffer(bins.data(), bins.size() * 4, "bins", Access::kReadWrite);
  const GlobalBuffer largest_buffer(&largest, 4, "largest", Access::kReadWrite);
  const auto kernel = [data = in.data(), count = in.size(), out = bins.data(), top = &largest] {
    QUIRE_SIMT_SHARED(std::int32_t[kBins], local);
    const std::uint32_t thread = thread_idx().x;
    if (thread < kBins) local[thread] = 0;
    sync_threads();
    const std::size_t step = std::size_t{block_dim().x} * grid_dim().x;
    for (std::size_t i = block_idx().x * block_dim().x + thread; i < count; i += step) {
      atomic_add(&local[data[i]], 1);
      atomic_max(top, data[i]);
    }
    sync_threads();
    if (thread < kBins) atomic_add(&out[thread], local[thread]);
  };
  for (const std::uint64_t seed : kSeeds) {
    std::fill(bins.begin(), bins.end(), 0);
    largest = -1;
    launch("histogram", two_warps(0, 3), kernel, {.seed = seed});
    std::vector<std::int32_t> expected(kBins);
    for (const std::int32_t number : in) ++expected[static_cast<std::size_t>(number)];
    EXPECT_EQ(bins, expected);
    EXPECT_EQ(largest, kBins - 1);
  }
}

TEST_P(Kernels, OtherAtomics) {
  std::uint64_t word = 5;
  const GlobalBuffer buffer(&word, 8, "word", Access::kReadWrite);
  launch("atomics", {.warp_width = width()}, [p = &word] {
    check(atomic_exchange(p, 9U) == 5, "exchange");
    check(atomic_compare_exchange(p, 1U, 2U) == 9, "compare, unequal");
    check(atomic_compare_exchange(p, 9U, 12U) == 9, "compare, equal");
    check(atomic_or(p, 3U) == 12, "or");
    check(atomic_min(p, 7U) == 15, "min");
    check(atomic_load(p) == 7, "load");
    atomic_store(p, 1U);
    check(*p == 1, "store");
    auto* const number = reinterpret_cast<float*>(p);
    atomic_store(number, -2.0F);
    check(atomic_add(number, 0.5F) == -2.0F && atomic_max(number, -1.0F) == -1.5F, "f32");
  });
  EXPECT_EQ(static_cast<std::uint32_t>(word), 0xbf800000U);
}

// Every block stores its sums; the last to arrive adds them up: fence, count, fence.
TEST_P(Kernels, LastArriverMerges) {
  constexpr std::uint32_t kBlocks = 9;
  const auto in = random_numbers(4000, 1000);
  std::vector<std::int64_t> partials(kBlocks * 128);
  std::int32_t count = 0;
  std::int64_t sum = 0;
  const GlobalBuffer in_buffer(in.data(), in.size() * 4, "in", Access::kReadOnly);
  const GlobalBuffer count_buffer(&count, 4, "count", Access::kReadWrite);
  const GlobalBuffer sum_buffer(&sum, 8, "sum", Access::kReadWrite);
  const auto kernel = [data = in.data(), size = in.size(), partial = partials.data(),
                       counter = &count, out = &sum] {
    QUIRE_SIMT_SHARED(bool, last);
    const std::uint32_t thread = thread_idx().x;
    const std::uint32_t threads = block_dim().x;
    std::int64_t own = 0;
    for (std::size_t i = block_idx().x * threads + thread; i < size; i += threads * grid_dim().x) {
      own += data[i];
    }
    partial[block_idx().x * threads + thread] = own;
    fence_device();
    sync_threads();
    if (thread == 0) {
      last = atomic_add(counter, 1) == static_cast<std::int32_t>(grid_dim().x) - 1;
      if (last) *counter = 0;
    }
    sync_threads();
    if (!last) return;
    fence_device();
    if (thread != 0) return;
    std::int64_t total = 0;
    for (std::uint32_t i = 0; i < grid_dim().x * threads; ++i) total += partial[i];
    *out = total;
  };
  for (const std::uint64_t seed : kSeeds) {
    const GlobalBuffer partials_buffer(partials.data(), partials.size() * 8, "partials",
                                       Access::kReadWrite, Contents::kUndefined);
    launch("merge", two_warps(0, kBlocks), kernel, {.seed = seed});
    EXPECT_EQ(sum, std::accumulate(in.begin(), in.end(), std::int64_t{0}));
    EXPECT_EQ(count, 0);
  }
}

// One warp waits on a flag that the other sets.
TEST_P(Kernels, WarpsOfABlockMayWaitForEachOther) {
  launch("flag", two_warps(), [] {
    QUIRE_SIMT_SHARED(int, flag);
    QUIRE_SIMT_SHARED(int, value);
    if (thread_idx().x == 0) flag = 0;
    sync_threads();
    if (warp_id() == 0 && lane_id() == 0) {
      while (atomic_load(&flag) == 0) {
      }
      fence_block();
      check(value == 42, "published before the flag");
    } else if (warp_id() == 1 && lane_id() == 0) {
      value = 42;
      fence_block();
      atomic_store(&flag, 1);
    }
  });
}

TEST_P(Kernels, StatsCountSwitchesAccessesAndSharedMemory) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const LaunchStats stats = launch("stats", two_warps(256), [] {
    QUIRE_SIMT_SHARED(int[8], some);
    if (thread_idx().x < 8) some[thread_idx().x] = 1;
    sync_threads();
  });
  EXPECT_EQ(stats.shared_bytes, 256U + 32U);
  EXPECT_GE(stats.num_accesses, 8U);
  EXPECT_GE(stats.num_switches, 2U * 2U * static_cast<std::uint64_t>(width()));
}

TEST(Launch, SeveralHostThreads) {
  const auto launch_often = [](std::vector<int>& numbers) {
    const GlobalBuffer buffer(numbers.data(), numbers.size() * 4, "numbers", Access::kReadWrite);
    for (int round = 0; round < 20; ++round) {
      launch("count", {.grid = {4}, .block = {64}}, [p = numbers.data()] {
        QUIRE_SIMT_SHARED(int[64], local);
        local[thread_idx().x] = p[block_idx().x * 64 + thread_idx().x];
        sync_threads();
        p[block_idx().x * 64 + thread_idx().x] = local[63 - thread_idx().x] + 1;
      });
    }
  };
  std::vector<std::vector<int>> numbers(3, std::vector<int>(256));
  std::vector<std::thread> threads;
  threads.reserve(numbers.size());
  for (std::vector<int>& own : numbers) threads.emplace_back(launch_often, std::ref(own));
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& own : numbers) EXPECT_EQ(own, std::vector<int>(256, 20));
}

TEST(Launch, BadShapesAreRefused) {
  const auto nothing = [] {};
  EXPECT_THROW(launch("k", {.grid = {0}}, nothing), Error);
  EXPECT_THROW(launch("k", {.block = {1025}}, nothing), Error);
  EXPECT_THROW(launch("k", {.warp_width = 16}, nothing), Error);
  EXPECT_THROW(launch("k", {.shared_bytes = 1 << 20}, nothing), Error);
  launch("k", {.block = {1024}}, nothing);
}

INSTANTIATE_TEST_SUITE_P(BothWidths, Kernels, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
