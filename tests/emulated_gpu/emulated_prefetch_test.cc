// SPDX-License-Identifier: Apache-2.0
// What a kernel fetches early, by a plan that may not be there yet: whatever the plan's memory
// holds, nothing outside the cache is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "backends/gpu/transfer_plan.h"
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
  bool exceeds_cache = false;  // then more is fetched
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
    args_.keys_exceed_cache = shape.exceeds_cache;
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
               std::to_string(static_cast<int>(shape.strides)) + ", exceeds cache " +
               std::to_string(static_cast<int>(shape.exceeds_cache)));
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
          for (const bool exceeds_cache : {false, true}) {
            expect_within_cache({dtype, dims, block_size, strides, exceeds_cache});
          }
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

// New K and V of random shapes and strides: heads and tokens may lie backwards, in each other's
// places, or all at one.
class EarlyAppend {
 public:
  explicit EarlyAppend(unsigned seed) : random_(seed) {
    cache_.num_kv_heads = pick({1, 2, 3, 8, 17});
    cache_.head_dim = pick({8, 24, 64, 72, 128, 576});
    cache_.value_dim = pick({8, 16, 64, 128, 512});
    cache_.num_blocks = 4;
    cache_.k_strides = cache_.v_strides = {1 << 20, 1024, 64};
    const bool sets_scales = pick({0, 0, 1}) == 1;
    cache_.format.dtype = sets_scales || pick({0, 1}) == 1 ? DType::kF8E4M3 : DType::kBF16;
    cache_.format.scales = sets_scales ? ScaleGranularity::kPerTokenHead : ScaleGranularity::kNone;
    cache_.format.block_size = 16;
    cache_.format.v_in_k = pick({0, 0, 0, 1}) == 1;
    const int num_tokens = pick({1, 2, 3, 31, 70, 257});
    new_kv_.k = make_tensor(num_tokens, cache_.head_dim, "k");
    if (!cache_.format.v_in_k) new_kv_.v = make_tensor(num_tokens, cache_.value_dim, "v");
    slots_.assign(static_cast<std::size_t>(num_tokens), 0);
    seen_.emplace_back(slots_.data(), sizeof(slots_[0]) * slots_.size(), "slots",
                       simt::Access::kReadOnly);
  }

  // False: these rows are not taken in chunks.
  bool launch() {
    gpu::AppendArgs args;
    args.slots = slots_;
    args.vectors = gpu::plan_append(new_kv_, cache_, args.slots, pick({1, 4, 132}));
    if (args.vectors.num_items == 0) return false;
    args.num_resident_blocks = pick({1, 2, 1'000'000});
    args.new_kv = new_kv_;
    args.cache = cache_;
    const auto kind =
        args.vectors.sets_scales ? gpu::KernelKind::kAppendScaled : gpu::KernelKind::kAppendVectors;
    const int num_blocks = std::min(args.vectors.num_items, pick({1, 3, 40}));
    launch_emulated({.kind = kind}, {.num_blocks = num_blocks, .only_prefetch = true}, &args);
    return true;
  }

 private:
  int pick(std::initializer_list<int> of) { return *(of.begin() + random_() % of.size()); }

  // In memory that ends where it does.
  TensorView make_tensor(std::int64_t num_tokens, std::int64_t dims, const char* name) {
    const std::int64_t heads = cache_.num_kv_heads;
    std::int64_t head = pick({0, 1, 1, -1, 2}) * dims;
    std::int64_t token = pick({0, 1, 1, -1, 3}) * (heads * std::abs(head) + 8 * pick({0, 1, 5}));
    if (pick({0, 0, 0, 1}) == 1) {
      head = num_tokens * dims;
      token = dims;
    }
    const std::int64_t ends[] = {token * (num_tokens - 1), head * (heads - 1)};
    std::int64_t low = 0;
    std::int64_t high = dims;
    for (const std::int64_t end : ends) (end < 0 ? low : high) += end;
    auto& memory = memory_.emplace_back(static_cast<std::size_t>(high - low) / 8);
    seen_.emplace_back(memory.data(), sizeof(Sixteen) * memory.size(), name,
                       simt::Access::kReadOnly);
    TensorView view;
    view.data = reinterpret_cast<const std::uint16_t*>(memory.data()) - low;
    view.dtype = DType::kBF16;
    view.rank = 3;
    view.shape = {num_tokens, heads, dims};
    view.strides = {token, head, 1};
    return view;
  }

  std::minstd_rand random_;
  KvCacheView cache_;
  NewKv new_kv_;
  std::list<std::vector<Sixteen>> memory_;
  std::vector<std::int64_t> slots_;
  std::list<simt::GlobalBuffer> seen_;
};

TEST(EmulatedPrefetch, OfAppendStaysWithinItsRows) {
  int num_taken = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    EarlyAppend early(seed);
    EXPECT_NO_THROW(num_taken += early.launch() ? 1 : 0) << "seed " << seed;
  }
  EXPECT_GT(num_taken, 100);
}

}  // namespace
}  // namespace quire::testing
