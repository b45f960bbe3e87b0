// SPDX-License-Identifier: Apache-2.0
// What AMD's matrix units are given and what is made of their results, on the emulator: the units
// are models of how the vendor's tables place the operands, the shuffles are those of the device.
#define QUIRE_GPU_EMULATED
#include "gpu/team_fragments.h"

#include <cstdint>
#include <random>
#include <vector>

#include "base/number_formats.h"
#include "gpu/device_api.h"
#include "gpu/emulator/emulator_fixture.h"

namespace quire::gpu {
namespace {

struct EmulatedTeam {
  static int lane() { return gpu::lane(); }
  static std::uint32_t shuffle(std::uint32_t value, int from) { return gpu::shuffle(value, from); }
  static const void* shuffle_address(const void* address, int from) {
    return reinterpret_cast<const void*>(
        gpu::shuffle(reinterpret_cast<std::uintptr_t>(address), from));
  }
};
using Fragments = TeamFragments<EmulatedTeam>;

// The products of two words with two numbers each.
template <class Format>
float dot(std::uint32_t a, std::uint32_t b) {
  const auto at = [](std::uint32_t word, int half) {
    return to_float(Format{static_cast<std::uint16_t>(word >> (16 * half))});
  };
  return at(a, 0) * at(b, 0) + at(a, 1) * at(b, 1);
}

// v_mfma_f32_4x4x4, over 16 k in four steps: blocks of 4 lanes.
struct BlocksUnit {
  using Layout = BlocksLayout;
  template <class Format>
  static void multiply(float (&d)[4], const std::uint32_t (&left)[8],
                       const std::uint32_t (&right)[8], Format) {
    for (int i = 0; i < 4; ++i) {
      d[i] = 0.0F;
      for (int k = 0; k < 8; ++k) {
        d[i] += dot<Format>(gpu::shuffle(left[k], lane() / 4 * 4 + i), right[k]);
      }
    }
  }
};

// v_wmma_f32_16x16x16 in waves of 32: both halves of the wave must bring the same operands.
struct WaveUnit {
  using Layout = WaveLayout;
  template <class Format>
  static void multiply(float (&d)[8], const std::uint32_t (&left)[8],
                       const std::uint32_t (&right)[8], Format) {
    for (int k = 0; k < 8; ++k) {
      simt::check(gpu::shuffle_xor(left[k], 16) == left[k], "left halves differ");
      simt::check(gpu::shuffle_xor(right[k], 16) == right[k], "right halves differ");
    }
    for (int i = 0; i < 8; ++i) {
      d[i] = 0.0F;
      for (int k = 0; k < 8; ++k) {
        d[i] += dot<Format>(gpu::shuffle(left[k], 2 * i + lane() / 16), right[k]);
      }
    }
  }
};

class TeamFragmentsTest : public simt::WarpWidths {
 protected:
  // Small integers: sums of their products are exact in f32 whatever the order.
  template <class T>
  std::vector<T> random_matrix(int size) {
    std::vector<T> numbers(static_cast<std::size_t>(size));
    for (T& x : numbers) x = from_float<T>(static_cast<float>(random_() % 17) - 8.0F);
    return numbers;
  }

  // C += A * B twice, from fragments as mma.m16n8k16 has them, in the last team of each warp or in
  // all of them, each with matrices of its own.
  template <class Unit, class T>
  void check_product(bool all_teams) {
    const int num_teams = 2 * width() / 32;
    const auto a = random_matrix<T>(num_teams * 16 * 16);
    const auto b = random_matrix<T>(num_teams * 16 * 8);
    std::vector<float> c(static_cast<std::size_t>(num_teams * 16 * 8));
    const simt::GlobalBuffer a_buffer(a.data(), a.size() * 2, "a", simt::Access::kReadOnly);
    const simt::GlobalBuffer b_buffer(b.data(), b.size() * 2, "b", simt::Access::kReadOnly);
    const simt::GlobalBuffer c_buffer(c.data(), c.size() * 4, "c", simt::Access::kReadWrite);
    const int first_team = all_teams ? 0 : num_teams - 1;
    simt::launch("product", two_warps(), [first_team, a = a.data(), b = b.data(), c = c.data()] {
      if (team() < first_team) return;
      multiply_twice<Unit>(a + team() * 256, b + team() * 128, c + team() * 128);
    });
    for (int t = first_team; t < num_teams; ++t) {
      for (int i = 0; i < 16 * 8; ++i) {
        float sum = 0.0F;
        for (int k = 0; k < 16; ++k) {
          sum += to_float(a[static_cast<std::size_t>(t * 256 + i / 8 * 16 + k)]) *
                 to_float(b[static_cast<std::size_t>(t * 128 + k * 8 + i % 8)]);
        }
        EXPECT_EQ(c[static_cast<std::size_t>(t * 128 + i)], 2.0F * sum + 1.0F)
            << "team " << t << ", row " << i / 8 << ", column " << i % 8;
      }
    }
  }

  // a [16, 16], b [16, 8], c [16, 8]
  template <class Unit, class T>
  static void multiply_twice(const T* a, const T* b, float* c) {
    const int row = lane() / 4;
    const int pair = 2 * (lane() % 4);
    const auto two = [](T low, T high) {
      return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
    };
    std::uint32_t words[4];
    for (int i = 0; i < 4; ++i) {
      const T* at = a + (row + i % 2 * 8) * 16 + pair + i / 2 * 8;
      words[i] = two(at[0], at[1]);
    }
    const std::uint32_t b0 = two(b[pair * 8 + row], b[(pair + 1) * 8 + row]);
    const std::uint32_t b1 = two(b[(pair + 8) * 8 + row], b[(pair + 9) * 8 + row]);
    float sums[4] = {1.0F, 1.0F, 1.0F, 1.0F};
    for (int i = 0; i < 2; ++i) Fragments::multiply_add<Unit>(sums, words, b0, b1, T{});
    for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 8 + pair + i % 2] = sums[i];
  }

 private:
  std::mt19937 random_{17};
};

TEST_P(TeamFragmentsTest, ProductsInBlocks) {
  for (const bool all_teams : {false, true}) {
    check_product<BlocksUnit, BFloat16>(all_teams);
    check_product<BlocksUnit, Float16>(all_teams);
  }
}

TEST_P(TeamFragmentsTest, ProductsOfWaves) {
  for (const bool all_teams : {false, true}) {
    check_product<WaveUnit, BFloat16>(all_teams);
    check_product<WaveUnit, Float16>(all_teams);
  }
}

// The same registers as the instructions that the emulator models for NVIDIA.
TEST_P(TeamFragmentsTest, LoadsAndTransposes) {
  constexpr int kStride = 48;  // bytes of a row, of which 16 are read
  constexpr int kBytes = 32 * kStride;
  const int num_teams = 2 * width() / 32;
  const auto numbers = random_matrix<BFloat16>(num_teams * kBytes / 2);
  std::vector<std::uint32_t> differs(static_cast<std::size_t>(2 * width()));
  const simt::GlobalBuffer from(numbers.data(), numbers.size() * 2, "numbers",
                                simt::Access::kReadOnly);
  const simt::GlobalBuffer to(differs.data(), differs.size() * 4, "differs",
                              simt::Access::kReadWrite);
  simt::launch(
      "matrices", two_warps(static_cast<std::size_t>(num_teams * kBytes)),
      [from = numbers.data(), to = differs.data()] {
        auto* memory = reinterpret_cast<std::uint16_t*>(shared_memory());
        for (int i = thread_index(); i < num_threads() / 32 * kBytes / 2; i += num_threads()) {
          memory[i] = from[i].bits;
        }
        sync_block();
        const unsigned char* row = shared_memory() + team() * kBytes + (lane() * 7 % 32) * kStride;
        std::uint32_t plain[4];
        std::uint32_t transposed[4];
        std::uint32_t expected[4];
        std::uint32_t wrong = 0;
        Fragments::load_matrices(plain, row);
        load_matrices(expected, row);
        for (int i = 0; i < 4; ++i) wrong |= plain[i] ^ expected[i];
        Fragments::load_matrices_transposed(transposed, row);
        load_matrices_transposed(expected, row);
        for (int i = 0; i < 4; ++i) {
          wrong |= transposed[i] ^ expected[i];
          wrong |= Fragments::transpose_matrix(plain[i]) ^ transposed[i];
        }
        to[thread_index()] = wrong;
      });
  for (std::size_t i = 0; i < differs.size(); ++i) EXPECT_EQ(differs[i], 0U) << "thread " << i;
}

INSTANTIATE_TEST_SUITE_P(Widths, TeamFragmentsTest, testing::Values(32, 64));

}  // namespace
}  // namespace quire::gpu
