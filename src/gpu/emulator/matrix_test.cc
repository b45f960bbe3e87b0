// SPDX-License-Identifier: Apache-2.0
// Matrix fragments held to plain loops, and loads of matrices that go wrong.
#include "gpu/emulator/matrix.h"

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "base/number_formats.h"
#include "gpu/emulator/emulator_fixture.h"

namespace quire::simt {
namespace {

// Small integers: sums of their products are exact in f32 whatever the order.
template <class T>
std::vector<T> random_matrix(int rows, int columns) {
  static std::mt19937 random(11);
  std::vector<T> numbers(static_cast<std::size_t>(rows * columns));
  for (T& number : numbers) number = from_float<T>(static_cast<float>(random() % 17) - 8.0F);
  return numbers;
}

// a [m, k] times b [k, n], row-major.
template <class T>
std::vector<float> plain_product(const std::vector<T>& a, const std::vector<T>& b, int m, int n,
                                 int k) {
  std::vector<float> product(static_cast<std::size_t>(m * n));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int x = 0; x < k; ++x) {
        product[static_cast<std::size_t>(i * n + j)] +=
            to_float(a[static_cast<std::size_t>(i * k + x)]) *
            to_float(b[static_cast<std::size_t>(x * n + j)]);
      }
    }
  }
  return product;
}

// The 32 lanes that multiply together, and the lane among them.
int team() {
  return static_cast<int>(thread_idx().x) / 32;
}
int teams() {
  return static_cast<int>(block_dim().x) / 32;
}
int team_lane() {
  return static_cast<int>(thread_idx().x) % 32;
}

class Mma : public WarpWidths {};

template <class T>
std::uint32_t pack(T low, T high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}

template <class T>
void multiply_accumulate(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  } else {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
}

// Fragments filled element by element, as the tables of the instruction set write them.
template <class T>
void check_mma(int warp_width) {
  const auto a = random_matrix<T>(16, 16);
  const auto b = random_matrix<T>(16, 8);
  std::vector<float> d(16 * 8);
  const GlobalBuffer a_buffer(a.data(), a.size() * 2, "a", Access::kReadOnly);
  const GlobalBuffer b_buffer(b.data(), b.size() * 2, "b", Access::kReadOnly);
  const GlobalBuffer d_buffer(d.data(), d.size() * 4, "d", Access::kReadWrite);
  const auto kernel = [a = a.data(), b = b.data(), d = d.data()] {
    if (team() != teams() - 1) return;  // each team works by itself
    const int g = team_lane() / 4;
    const int t = team_lane() % 4;
    std::uint32_t fragment[4];
    for (int i = 0; i < 4; ++i) {
      const T* const at = a + (g + 8 * (i & 1)) * 16 + 2 * t + 8 * (i >> 1);
      fragment[i] = pack(at[0], at[1]);
    }
    const std::uint32_t b0 = pack(b[2 * t * 8 + g], b[(2 * t + 1) * 8 + g]);
    const std::uint32_t b1 = pack(b[(2 * t + 8) * 8 + g], b[(2 * t + 9) * 8 + g]);
    float sums[4] = {1, 1, 1, 1};
    multiply_accumulate<T>(sums, fragment, b0, b1);
    multiply_accumulate<T>(sums, fragment, b0, b1);
    for (int i = 0; i < 4; ++i) d[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = sums[i];
  };
  const auto threads = static_cast<std::uint32_t>(warp_width);
  launch("mma", {.block = {threads}, .warp_width = warp_width}, kernel);
  const auto expected = plain_product(a, b, 16, 8, 16);
  for (std::size_t i = 0; i < d.size(); ++i) EXPECT_EQ(d[i], 2 * expected[i] + 1) << i;
}

TEST_P(Mma, Bf16) {
  check_mma<BFloat16>(width());
}
TEST_P(Mma, F16) {
  check_mma<Float16>(width());
}

template <class T>
void check_mfma() {
  const auto a = random_matrix<T>(16, 16);
  const auto b = random_matrix<T>(16, 16);
  std::vector<float> d(16 * 16);
  const GlobalBuffer a_buffer(a.data(), a.size() * 2, "a", Access::kReadOnly);
  const GlobalBuffer b_buffer(b.data(), b.size() * 2, "b", Access::kReadOnly);
  const GlobalBuffer d_buffer(d.data(), d.size() * 4, "d", Access::kReadWrite);
  const auto kernel = [a = a.data(), b = b.data(), d = d.data()] {
    const int i = lane_id() % 16;
    const int q = lane_id() / 16;
    const T* const row = a + i * 16 + 4 * q;
    const T* const column = b + 4 * q * 16 + i;
    const std::uint32_t fragment_a[2] = {pack(row[0], row[1]), pack(row[2], row[3])};
    const std::uint32_t fragment_b[2] = {pack(column[0], column[16]), pack(column[32], column[48])};
    float sums[4] = {1, 1, 1, 1};
    if constexpr (std::is_same_v<T, BFloat16>) {
      mfma_16x16x16_bf16(sums, fragment_a, fragment_b);
    } else {
      mfma_16x16x16_f16(sums, fragment_a, fragment_b);
    }
    for (int r = 0; r < 4; ++r) d[(4 * q + r) * 16 + i] = sums[r];
  };
  launch("mfma", {.block = {64}, .warp_width = 64}, kernel);
  const auto expected = plain_product(a, b, 16, 16, 16);
  for (std::size_t i = 0; i < d.size(); ++i) EXPECT_EQ(d[i], expected[i] + 1) << i;
}

TEST(Mfma, Bf16) {
  check_mfma<BFloat16>();
}
TEST(Mfma, F16) {
  check_mfma<Float16>();
}

// Every team of a warp has a matrix of its own.
TEST_P(Mma, TransposesARegister) {
  std::vector<std::uint32_t> got(64);
  const GlobalBuffer buffer(got.data(), got.size() * 4, "got", Access::kReadWrite);
  const auto element = [](int team, int row, int column) {
    return static_cast<std::uint32_t>(1000 * team + 8 * row + column);
  };
  launch("transpose", {.block = {64}, .warp_width = width()}, [element, to = got.data()] {
    const int thread = static_cast<int>(thread_idx().x);
    const int g = thread % 32 / 4;
    const int t = thread % 4;
    to[thread] =
        transpose_matrix(element(thread / 32, g, 2 * t) | element(thread / 32, g, 2 * t + 1) << 16);
  });
  for (int thread = 0; thread < 64; ++thread) {
    const int g = thread % 32 / 4;
    const int t = thread % 4;
    EXPECT_EQ(got[static_cast<std::size_t>(thread)],
              element(thread / 32, 2 * t, g) | element(thread / 32, 2 * t + 1, g) << 16)
        << thread;
  }
}

TEST(LoadMatrix, BothOrientations) {
  launch("load", {.block = {32}, .shared_bytes = 512}, [] {
    auto* const numbers = static_cast<std::uint16_t*>(dynamic_shared());  // [4 matrices, 8, 8]
    for (int i = lane_id(); i < 256; i += 32) numbers[i] = static_cast<std::uint16_t>(i);
    sync_warp();
    const int g = lane_id() / 4;
    const int t = lane_id() % 4;
    std::uint32_t plain[4];
    std::uint32_t transposed[4];
    load_matrix_x4(plain, numbers + lane_id() * 8);
    load_matrix_x4_transposed(transposed, numbers + lane_id() * 8);
    for (int m = 0; m < 4; ++m) {
      const auto at = [m](int row, int column) {
        return static_cast<std::uint32_t>(m * 64 + row * 8 + column);
      };
      check(plain[m] == (at(g, 2 * t) | at(g, 2 * t + 1) << 16), "rows");
      check(transposed[m] == (at(2 * t, g) | at(2 * t + 1, g) << 16), "columns");
    }
    std::uint32_t two[2];
    load_matrix_x2(two, lane_id() < 16 ? numbers + lane_id() * 8 : nullptr);
    check(two[1] == plain[1], "two matrices");
    load_matrix_x2_transposed(two, lane_id() < 16 ? numbers + lane_id() * 8 : nullptr);
    check(two[1] == transposed[1], "two matrices, transposed");
  });
}

// A tile product as kernels do it: asynchronous copies, swizzled rows, loads of matrices.
TEST_P(Mma, TileProductThroughSharedMemory) {
  constexpr int kM = 32;
  constexpr int kN = 32;
  constexpr int kK = 64;
  const auto a = random_matrix<BFloat16>(kM, kK);
  const auto b = random_matrix<BFloat16>(kK, kN);
  std::vector<float> d(kM * kN);
  alignas(16) static BFloat16 a_memory[kM * kK];
  alignas(16) static BFloat16 b_memory[kK * kN];
  std::copy(a.begin(), a.end(), a_memory);
  std::copy(b.begin(), b.end(), b_memory);
  const GlobalBuffer a_buffer(a_memory, sizeof(a_memory), "a", Access::kReadOnly);
  const GlobalBuffer b_buffer(b_memory, sizeof(b_memory), "b", Access::kReadOnly);
  const GlobalBuffer d_buffer(d.data(), d.size() * 4, "d", Access::kReadWrite);
  const auto kernel = [a = a_memory, b = b_memory, d = d.data()](bool wait, bool barrier) {
    return [=] {
      auto* const a_tile = static_cast<BFloat16*>(dynamic_shared());  // [kM, kK], chunks swizzled
      BFloat16* const b_tile = a_tile + kM * kK;                      // [kK, kN]
      const int thread = static_cast<int>(thread_idx().x);
      const auto a_at = [&](int row, int chunk) {
        return a_tile + row * kK + (chunk ^ (row & 7)) * 8;
      };
      const auto b_at = [&](int row, int chunk) {
        return b_tile + row * kN + (chunk ^ (row & 3)) * 8;
      };
      for (int i = thread; i < kM * kK / 8; i += 64) {
        copy_async(a_at(i / (kK / 8), i % (kK / 8)), a + i * 8, 16, 16);
      }
      for (int i = thread; i < kK * kN / 8; i += 64) {
        copy_async(b_at(i / (kN / 8), i % (kN / 8)), b + i * 8, 16, 16);
      }
      copy_async_commit();
      if (wait) copy_async_wait(0);
      if (barrier) sync_threads();
      const int lane = team_lane();
      const int first_row = 16 * team();
      float sums[kN / 8][4] = {};
      for (int k = 0; k < kK; k += 16) {
        std::uint32_t fragment[4];
        load_matrix_x4(fragment, a_at(first_row + lane % 16, k / 8 + lane / 16));
        for (int n = 0; n < kN / 8; n += 2) {
          std::uint32_t columns[4];
          load_matrix_x4_transposed(columns, b_at(k + lane % 16, n + lane / 16));
          mma_m16n8k16_bf16(sums[n], fragment, columns[0], columns[1]);
          mma_m16n8k16_bf16(sums[n + 1], fragment, columns[2], columns[3]);
        }
      }
      for (int n = 0; n < kN / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          const int row = first_row + lane / 4 + 8 * (i / 2);
          d[row * kN + n * 8 + 2 * (lane % 4) + i % 2] = sums[n][i];
        }
      }
    };
  };
  const LaunchShape shape{
      .block = {64}, .shared_bytes = sizeof(a_memory) + sizeof(b_memory), .warp_width = width()};
  for (const std::uint64_t seed : {0, 1, 2}) {
    EXPECT_THAT(fault_of(shape, kernel(true, true), {.seed = seed}), EndsWell());
    EXPECT_EQ(d, plain_product(a, b, kM, kN, kK));
  }
  QUIRE_SIMT_NEEDS_HOOKS();
  EXPECT_THAT(fault_of(shape, kernel(false, true)),
              Faults(FaultKind::kAsyncPending, "load of 16 bytes"));
  EXPECT_TRUE(fault_of(shape, kernel(true, false)).has_value());
}

class BadLoads : public WarpWidths {
 protected:
  // Loads four matrices from rows that `offset` moves, after a barrier or not.
  static auto kernel(int offset, bool barrier, bool fill) {
    return [=] {
      auto* const numbers = static_cast<std::uint16_t*>(dynamic_shared());
      if (fill) {
        for (int i = lane_id(); i < 256; i += 32) numbers[i] = 1;
      }
      if (barrier) sync_warp();
      std::uint32_t registers[4];
      load_matrix_x4(registers, numbers + lane_id() * 8 + offset);
    };
  }
  LaunchShape shape() const { return {.block = {32}, .shared_bytes = 512, .warp_width = width()}; }
};

TEST_P(BadLoads, Addresses) {
  QUIRE_SIMT_NEEDS_HOOKS();
  EXPECT_THAT(fault_of(shape(), kernel(0, true, true)), EndsWell());
  EXPECT_THAT(fault_of(shape(), kernel(4, true, true)), Faults(FaultKind::kMisaligned, "a row"));
  EXPECT_THAT(fault_of(shape(), kernel(8, true, true)),
              Faults(FaultKind::kOutOfBounds, "past the end of dynamic shared memory"));
  EXPECT_THAT(fault_of(shape(), kernel(0, true, false)),
              Faults(FaultKind::kUninitialised, "load of 16 bytes"));
  EXPECT_THAT(fault_of(shape(),
                       [] {
                         alignas(16) std::uint16_t row[8] = {};
                         std::uint32_t registers[4];
                         load_matrix_x4(registers, row);
                       }),
              Faults(FaultKind::kOutOfBounds, "not in shared memory"));
}

TEST_P(BadLoads, Races) {
  QUIRE_SIMT_NEEDS_HOOKS();
  EXPECT_THAT(fault_of(shape(), kernel(0, false, true)), Faults(FaultKind::kRace, ""));
}

// A row that its own lane wrote still goes to other lanes.
TEST_P(BadLoads, TheLaneThatGetsANumberMustBeOrderedToo) {
  QUIRE_SIMT_NEEDS_HOOKS();
  const auto own_rows = [](bool barrier) {
    return [barrier] {
      auto* const row = static_cast<std::uint16_t*>(dynamic_shared()) + lane_id() * 8;
      for (int i = 0; i < 8; ++i) row[i] = 1;
      if (barrier) sync_warp();
      std::uint32_t registers[4];
      load_matrix_x4(registers, row);
    };
  };
  EXPECT_THAT(fault_of(shape(), own_rows(true)), EndsWell());
  EXPECT_THAT(fault_of(shape(), own_rows(false)), Faults(FaultKind::kRace, "load of 16 bytes"));
}

TEST(Lanes, AllMustExist) {
  const auto kernel = [] {
    float d[4] = {};
    const std::uint32_t a[4] = {};
    mma_m16n8k16_bf16(d, a, 0, 0);
  };
  EXPECT_THAT(fault_of({.block = {32}}, kernel), EndsWell());
  EXPECT_THAT(fault_of({.block = {48}}, kernel),
              Faults(FaultKind::kCheckFailed, "needs 32 lanes, here are 16"));
  EXPECT_THAT(fault_of({.block = {32}},
                       [] {
                         float d[4] = {};
                         const std::uint32_t a[2] = {};
                         mfma_16x16x16_bf16(d, a, a);
                       }),
              Faults(FaultKind::kCheckFailed, "needs 64 lanes, here are 32"));
}

INSTANTIATE_TEST_SUITE_P(BothWidths, Mma, testing::Values(32, 64));
INSTANTIATE_TEST_SUITE_P(BothWidths, BadLoads, testing::Values(32, 64));

}  // namespace
}  // namespace quire::simt
