// SPDX-License-Identifier: Apache-2.0
// What a kernel fetches early, by a plan that may not be there yet: whatever the plan's memory
// holds, nothing outside the cache is touched.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "emulated_gpu/emulated_kernels.h"
#include "gpu/emulator/launch.h"
#include "gpu/kernel_args.h"

namespace quire::testing {
namespace {

constexpr int kNumRuns = 64;
constexpr int kNumBlocks = 3;
constexpr int kHeads = 2;
constexpr int kBlockSize = 32;
constexpr int kDims = 64;

class Early : public ::testing::Test {
 protected:
  Early() {
    args_.cache.k = k_.data();
    args_.cache.v = v_.data();
    args_.cache.num_blocks = kNumBlocks;
    args_.cache.num_kv_heads = kHeads;
    args_.cache.k_strides = {kHeads * kBlockSize * kDims, kBlockSize * kDims, kDims};
    args_.cache.v_strides = args_.cache.k_strides;
    args_.num_kv_heads = kHeads;
    args_.block_shift = 5;
    args_.has_simple_tiles = true;
    args_.ends_call = true;
    args_.starts = starts_.data();
  }

  // Heads and keys that are there or nearly so, any ids from -1 to `most_id`.
  void fill_starts(std::int32_t most_id) {
    const auto any = [this](std::int32_t most) {
      return std::uniform_int_distribution<std::int32_t>(-1, most)(random_);
    };
    for (gpu::RunStart& start : starts_) {
      start.item.kv_head = any(kHeads);
      start.item.key_begin = any(200);
      start.item.key_end = start.item.key_begin + any(600);
      for (std::int32_t& id : start.ids) id = any(most_id);
    }
  }

  void launch() {
    launch_emulated({gpu::KernelKind::kAttendFew, DType::kBF16, kDims},
                    {.num_blocks = kNumRuns, .only_prefetch = true}, &args_);
  }

  gpu::AttendArgs args_;

 private:
  static constexpr std::size_t kNumbers = kNumBlocks * kHeads * kBlockSize * kDims;
  std::minstd_rand random_;
  std::vector<std::uint16_t> k_ = std::vector<std::uint16_t>(kNumbers);
  std::vector<std::uint16_t> v_ = std::vector<std::uint16_t>(kNumbers);
  std::vector<gpu::RunStart> starts_ = std::vector<gpu::RunStart>(kNumRuns);
  simt::GlobalBuffer seen_k_{k_.data(), 2 * kNumbers, "k", simt::Access::kReadOnly};
  simt::GlobalBuffer seen_v_{v_.data(), 2 * kNumbers, "v", simt::Access::kReadOnly};
  simt::GlobalBuffer seen_starts_{starts_.data(), kNumRuns * sizeof(gpu::RunStart), "starts",
                                  simt::Access::kReadOnly};
};

TEST_F(Early, StaysWithinTheCacheWhateverThePlanHolds) {
  for (const std::int32_t most_id : {0, kNumBlocks - 1, kNumBlocks, 100, INT32_MAX}) {
    fill_starts(most_id);
    EXPECT_NO_THROW(launch()) << most_id;
  }
}

TEST_F(Early, IsSeenOutsideTheCache) {
  fill_starts(kNumBlocks);
  args_.cache.num_blocks = kNumBlocks + 1;
  EXPECT_THROW(launch(), simt::KernelFault);
}

}  // namespace
}  // namespace quire::testing
