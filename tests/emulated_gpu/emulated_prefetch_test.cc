// SPDX-License-Identifier: Apache-2.0
// What a kernel fetches early, by a plan that may not be there yet: whatever the plan's memory
// holds, nothing outside the cache is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emulated_gpu/emulated_kernels.h"
#include "gpu/emulator/launch.h"
#include "gpu/kernel_args.h"

namespace quire::testing {
namespace {

constexpr int kNumRuns = 32;
constexpr int kNumBlocks = 3;
constexpr int kHeads = 2;
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();

// How K and V lie.
enum class Strides : std::uint8_t {
  kAlike,
  kUnlike,     // the heads of V lie outside its blocks
  kBackwards,  // the blocks of K lie from the last to the first
};
constexpr Strides kEveryStrides[] = {Strides::kAlike, Strides::kUnlike, Strides::kBackwards};

struct CacheShape {
  DType dtype = DType::kBF16;
  int dims = 64;
  int block_size = 32;
  Strides strides = Strides::kAlike;
};

struct alignas(16) Sixteen {
  unsigned char bytes[16];
};

class EarlyFetch {
 public:
  explicit EarlyFetch(const CacheShape& shape)
      : shape_(shape),
        k_(num_sixteens(shape)),
        v_(num_sixteens(shape)),
        starts_(kNumRuns),
        runs_(kNumRuns + 1),
        seen_k_(k_.data(), sizeof(Sixteen) * k_.size(), "k", simt::Access::kReadOnly),
        seen_v_(v_.data(), sizeof(Sixteen) * v_.size(), "v", simt::Access::kReadOnly),
        seen_starts_(starts_.data(), sizeof(gpu::RunStart) * kNumRuns, "starts",
                     simt::Access::kReadOnly) {
    args_.cache.format.dtype = shape.dtype;
    args_.cache.format.block_size = shape.block_size;
    args_.cache.head_dim = shape.dims;
    args_.cache.value_dim = shape.dims;
    args_.cache.num_blocks = kNumBlocks;
    args_.cache.num_kv_heads = kHeads;
    args_.num_kv_heads = kHeads;
    args_.block_shift = std::countr_zero(static_cast<unsigned>(shape.block_size));
    args_.has_simple_tiles = true;
    args_.ends_call = true;
    args_.starts = starts_.data();
    args_.runs = runs_.data();
    place_cache();
  }

  // Heads that are there or nearly so, keys from about `key_begin` on, any ids from -1 to most_id.
  void fill_starts(std::int32_t most_id, std::int32_t key_begin = 0) {
    for (gpu::RunStart& start : starts_) {
      start.item.kv_head = draw(-1, kHeads);
      start.item.key_begin = key_begin + draw(-1, 200);
      const std::int32_t room = std::min(600, kMost - std::max(0, start.item.key_begin));
      start.item.key_end = start.item.key_begin + draw(-1, room);
      for (std::int32_t& id : start.ids) {
        id = draw(-1, most_id);
      }
    }
  }

  // Every word of a start may be any number; now and then id, head or both are there by chance.
  void fill_starts_with_garbage() {
    for (gpu::RunStart& start : starts_) {
      std::int32_t words[sizeof(gpu::RunStart) / sizeof(std::int32_t)];
      for (std::int32_t& word : words) {
        word = draw(0, 3) == 0 ? draw(0, 1) : draw(kLeast, kMost);
      }
      std::memcpy(static_cast<void*>(&start), words, sizeof(words));
    }
  }

  void pretend_num_blocks(std::int64_t num_blocks) { args_.cache.num_blocks = num_blocks; }

  void launch() const {
    launch_emulated({gpu::KernelKind::kAttendFew, shape_.dtype, shape_.dims},
                    {.num_blocks = kNumRuns, .only_prefetch = true}, &args_);
  }

 private:
  static std::size_t num_sixteens(const CacheShape& shape) {
    const std::int64_t numbers = std::int64_t{kNumBlocks} * kHeads * shape.block_size * shape.dims;
    return static_cast<std::size_t>(numbers * dtype_bytes(shape.dtype)) / sizeof(Sixteen);
  }

  std::int32_t draw(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }

  void place_cache() {
    const std::int64_t head = std::int64_t{shape_.block_size} * shape_.dims;
    const KvStrides plain{kHeads * head, head, shape_.dims};
    KvCacheView& cache = args_.cache;
    cache.k = k_.data();
    cache.v = v_.data();
    cache.k_strides = plain;
    cache.v_strides = plain;
    if (shape_.strides == Strides::kUnlike) {
      cache.v_strides = {head, kNumBlocks * head, shape_.dims};
    }
    if (shape_.strides == Strides::kBackwards) {
      cache.k_strides.block = -plain.block;
      const std::int64_t last = (kNumBlocks - 1) * plain.block * dtype_bytes(shape_.dtype);
      cache.k = reinterpret_cast<unsigned char*>(k_.data()) + last;
    }
  }

  CacheShape shape_;
  gpu::AttendArgs args_;
  std::minstd_rand random_;
  std::vector<Sixteen> k_;
  std::vector<Sixteen> v_;
  std::vector<gpu::RunStart> starts_;
  std::vector<std::int32_t> runs_;  // only asked to be brought near
  simt::GlobalBuffer seen_k_;
  simt::GlobalBuffer seen_v_;
  simt::GlobalBuffer seen_starts_;
};

void expect_within_cache(const CacheShape& shape) {
  SCOPED_TRACE(std::string(dtype_name(shape.dtype)) + ", " + std::to_string(shape.dims) +
               " dims, blocks of " + std::to_string(shape.block_size) + ", strides " +
               std::to_string(static_cast<int>(shape.strides)));
  EarlyFetch early(shape);
  for (const std::int32_t most_id : {0, kNumBlocks - 1, kNumBlocks, 100, kMost}) {
    early.fill_starts(most_id);
    EXPECT_NO_THROW(early.launch()) << "ids up to " << most_id;
  }
  for (const std::int32_t key_begin : {kLeast + 1, -100, kMost - 201}) {
    early.fill_starts(kNumBlocks - 1, key_begin);
    EXPECT_NO_THROW(early.launch()) << "keys from about " << key_begin;
  }
  early.fill_starts_with_garbage();
  EXPECT_NO_THROW(early.launch()) << "any words";
}

TEST(EmulatedPrefetch, StaysWithinTheCacheWhateverThePlanHolds) {
  for (const DType dtype :
       {DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const int dims : {64, 128, 256}) {
      for (const int block_size : {16, 32, 128}) {
        for (const Strides strides : kEveryStrides) {
          expect_within_cache({dtype, dims, block_size, strides});
        }
      }
    }
  }
}

TEST(EmulatedPrefetch, IsSeenOutsideTheCache) {
  if (!simt::hooks_present()) GTEST_SKIP() << "AddressSanitizer would end the program";
  for (const Strides strides : kEveryStrides) {
    EarlyFetch early({.strides = strides});
    early.fill_starts(kNumBlocks);
    early.pretend_num_blocks(kNumBlocks + 1);
    EXPECT_THROW(early.launch(), simt::KernelFault);
  }
}

}  // namespace
}  // namespace quire::testing
