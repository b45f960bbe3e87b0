// SPDX-License-Identifier: Apache-2.0
// Merges of the states of splits, on the emulator: the bits are those of folding one state after
// another, however many of them there is space for and however wide warps are.
#define QUIRE_GPU_EMULATED
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu/emulator/launch.h"
#include "gpu/kernels/row_states.h"

namespace quire::gpu {
namespace {

constexpr int kRows = 5;  // more than teams: one of them merges two
constexpr int kTeams = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct MergeLaunch {
  int capacity = 1;  // of the space of a team
  int warp_width = 32;
};

// Bits, so that NaN is equal to itself and -0 not to 0.
struct Merged {
  std::vector<std::uint32_t> out;  // [kRows, value_dim]
  std::vector<std::uint32_t> lse;  // [kRows]
  friend bool operator==(const Merged&, const Merged&) = default;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& numbers) {
  std::vector<std::uint32_t> bits;
  for (const float number : numbers) {
    bits.push_back(std::bit_cast<std::uint32_t>(number));
  }
  return bits;
}

// The states of all splits of a unit of one kv head.
class States {
 public:
  States(int num_splits, int value_dim)
      : num_splits_(num_splits),
        value_dim_(value_dim),
        value_stride_((value_dim + 3) / 4 * 4),
        values_(static_cast<std::size_t>(num_splits * kRows * value_stride_)),
        sums_(static_cast<std::size_t>(num_splits * kRows * 2)) {
    std::minstd_rand random(static_cast<unsigned>(7 * num_splits + value_dim));
    for (int split = 0; split < num_splits; ++split) {
      for (int row = 0; row < kRows; ++row) {
        fill(split, row, random);
      }
    }
  }

  // Partial `first` holds the state of all splits up to it.
  Merged merge(int first, const MergeLaunch& launch) {
    std::vector<float> out(static_cast<std::size_t>(kRows * value_dim_), -77.0F);
    std::vector<float> lse(kRows, -77.0F);
    const AttendArgs args = make_args(out, lse);
    const Item item = last_item();
    const simt::GlobalBuffer seen_values = seen(values_, "values", simt::Access::kReadOnly);
    const simt::GlobalBuffer seen_sums = seen(sums_, "sums", simt::Access::kReadOnly);
    const simt::GlobalBuffer seen_out = seen(out, "out", simt::Access::kReadWrite);
    const simt::GlobalBuffer seen_lse = seen(lse, "lse", simt::Access::kReadWrite);
    const int team_bytes = launch.capacity * kMergeStateBytes;
    simt::launch("merge_rows",
                 {.grid = {},
                  .block = {.x = kTeams * kTeam},
                  .shared_bytes = static_cast<std::size_t>(kTeams * team_bytes),
                  .warp_width = launch.warp_width},
                 [=, capacity = launch.capacity] {
                   merge_rows(args, item, first, {shared_memory() + team() * team_bytes, capacity});
                 });
    return {bits_of(out), bits_of(lse)};
  }

  // The same on the host, one state after another.
  Merged fold(int first) const {
    std::vector<float> out;
    std::vector<float> lse;
    for (int row = 0; row < kRows; ++row) {
      float sum = 0.0F;
      float maximum = -kInfinity;
      std::vector<float> totals(static_cast<std::size_t>(value_dim_));
      for (int split = first; split < num_splits_; ++split) {
        const float* state = sums_.data() + 2 * place(split, row);
        const float* values = values_.data() + value_stride_ * place(split, row);
        const float after = max_of(maximum, state[0]);
        const FoldFactors factors = fold_factors(maximum, state[0], after);
        sum = fold_value(factors, sum, state[1]);
        for (float& total : totals) {
          total = fold_value(factors, total, *values++);
        }
        maximum = after;
      }
      const float factor = sum != 0.0F ? 1.0F / sum : 0.0F;
      for (const float total : totals) {
        out.push_back(total * factor);
      }
      lse.push_back(sum != 0.0F ? maximum * kLn2 + log_exact(sum) : -kInfinity);
    }
    return {bits_of(out), bits_of(lse)};
  }

 private:
  static simt::GlobalBuffer seen(const std::vector<float>& numbers, const char* name,
                                 simt::Access access) {
    return {numbers.data(), numbers.size() * sizeof(float), name, access};
  }

  int place(int split, int row) const { return split * kRows + row; }

  // Some saw no key and hold any values, some have maxima far from others.
  void fill(int split, int row, std::minstd_rand& random) {
    std::uniform_real_distribution<float> number(-3.0F, 3.0F);
    float maximum = 10.0F * number(random);
    if (random() % 11 == 0) maximum = 200.0F;
    if (random() % 5 == 0) maximum = -500.0F;
    const bool is_empty = row == 0 || random() % 3 == 0;  // of the first row all
    float* state = sums_.data() + 2 * place(split, row);
    state[0] = is_empty ? -kInfinity : maximum;
    state[1] = is_empty ? 0.0F : std::abs(number(random)) + 0.1F;
    float* values = values_.data() + value_stride_ * place(split, row);
    for (int dim = 0; dim < value_stride_; ++dim) {
      values[dim] = is_empty ? std::numeric_limits<float>::quiet_NaN() : number(random);
    }
  }

  AttendArgs make_args(std::vector<float>& out, std::vector<float>& lse) {
    AttendArgs args;
    args.group = kRows;
    args.by_group = make_divider(kRows);
    args.num_kv_heads = 1;
    args.value_stride = value_stride_;
    args.partial_values = values_.data();
    args.partial_sums = sums_.data();
    args.output.out = MutableTensorView(out.data(), DType::kF32, {1, kRows, value_dim_});
    args.output.lse = MutableTensorView(lse.data(), DType::kF32, {1, kRows});
    return args;
  }

  // Whoever adds the last split merges.
  Item last_item() const {
    Item item{};
    item.num_rows = kRows;
    item.q_len = 1;
    item.num_splits = num_splits_;
    item.split = num_splits_ - 1;
    item.partial_row = place(item.split, 0);
    return item;
  }

  int num_splits_;
  int value_dim_;
  int value_stride_;
  std::vector<float> values_;  // [num_splits, kRows, value_stride]
  std::vector<float> sums_;    // [num_splits, kRows, 2]
};

// Rows of less than four values, of no multiple of four, and longer than a team takes at once; as
// many states, and space for as many, as less than a team loads, as one does and as several do.
TEST(EmulatedMerge, GivesTheBitsOfFoldingStatesInOrder) {
  for (const int value_dim : {1, 6, 300}) {
    for (const int num_splits : {2, 9, 33, 130}) {
      States states(num_splits, value_dim);
      for (const int first : {0, 1}) {
        const Merged want = states.fold(first);
        for (const int capacity : {1, 7, 32, 33, 64}) {
          for (const int warp_width : {32, 64}) {
            const Merged got = states.merge(first, {capacity, warp_width});
            EXPECT_TRUE(got == want)
                << value_dim << " values, splits from " << first << " to " << num_splits
                << ", space for " << capacity << ", warps of " << warp_width;
          }
        }
      }
    }
  }
}

TEST(EmulatedMerge, ARowThatSawNoKeyIsZero) {
  constexpr int kValueDim = 6;
  const Merged merged = States(3, kValueDim).merge(0, {.capacity = 2});
  for (int dim = 0; dim < kValueDim; ++dim) {
    EXPECT_EQ(merged.out[static_cast<std::size_t>(dim)], 0U);
  }
  EXPECT_EQ(merged.lse[0], std::bit_cast<std::uint32_t>(-kInfinity));
  EXPECT_TRUE(std::isfinite(std::bit_cast<float>(merged.lse[1])));
}

}  // namespace
}  // namespace quire::gpu
