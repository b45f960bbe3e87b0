// SPDX-License-Identifier: Apache-2.0
// The matrix fragments of device_api.h on matrix units that hold matrices in another way: operands
// and results are brought to their lanes by shuffles, and every product is of the 32 lanes of one
// team alone. Slower than a layout of the unit's own, and right for every kernel.
//
// `Team` is of the target: lane(), shuffle(word, from) and shuffle_address(pointer, from). `Unit`
// multiplies as its Layout says. Both units are given the transposed product, C^T = B^T A^T: a lane
// then gets several columns of one row, which is nearer to what it is to hold.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#if defined(QUIRE_GPU_EMULATED)  // other targets include this themselves
#include "gpu/device_api.h"
#endif

namespace quire::gpu {

// AMD's v_mfma_f32_4x4x4: 16 blocks [4, 4] in a wave of 64, each of 4 neighbouring lanes alone;
// larger products need what only the upper half of the wave could hold. Of block l / 4, lane l
// holds row l % 4 of the left operand, column l % 4 of the right one, and column l % 4 of the
// result, a row in each of four registers. The eight blocks of a team are C^T as [2, 4] blocks.
struct BlocksLayout {
  static constexpr int kRegisters = 4;
  // The column of B, and the row of A, that lane l multiplies.
  QUIRE_HOST_DEVICE static constexpr int column(int lane) { return lane / 4 % 2 * 4 + lane % 4; }
  QUIRE_HOST_DEVICE static constexpr int row(int lane) { return lane / 8 * 4 + lane % 4; }
  // Where the unit leaves an element of C.
  QUIRE_HOST_DEVICE static constexpr int lane_of(int row, int column) {
    return row / 4 * 8 + column / 4 * 4 + row % 4;
  }
  QUIRE_HOST_DEVICE static constexpr int register_of(int column) { return column % 4; }
};

// AMD's v_wmma_f32_16x16x16 in a wave of 32. Lane l holds row l % 16 of the left operand, column
// l % 16 of the right one, and of column l % 16 of the result row 2 * i + l / 16 in register i. The
// left operand is each of B's columns twice, in an order that lets a lane choose between two
// registers instead of four; the upper four registers are not needed.
struct WaveLayout {
  static constexpr int kRegisters = 8;
  QUIRE_HOST_DEVICE static constexpr int column(int lane) { return lane % 4 * 2 + lane / 4 % 2; }
  QUIRE_HOST_DEVICE static constexpr int row(int lane) { return lane % 16; }
  QUIRE_HOST_DEVICE static constexpr int lane_of(int row, int column) {
    return row + column / 2 % 2 * 16;
  }
  QUIRE_HOST_DEVICE static constexpr int register_of(int column) {
    return column % 2 * 2 + column / 4;
  }
};

template <class Team>
struct TeamFragments {
  // Eight words of two neighbouring k each: those of one column of B, or of one row of A.
  QUIRE_DEVICE static void gather_column(std::uint32_t (&words)[8], std::uint32_t b0,
                                         std::uint32_t b1, int column) {
    QUIRE_UNROLL
    for (int i = 0; i < 8; ++i) words[i] = Team::shuffle(i < 4 ? b0 : b1, 4 * column + i % 4);
  }
  QUIRE_DEVICE static void gather_row(std::uint32_t (&words)[8], const std::uint32_t (&a)[4],
                                      int row) {
    QUIRE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int from = 4 * (row % 8) + i % 4;
      const std::uint32_t lower = Team::shuffle(a[i / 4 * 2], from);
      const std::uint32_t upper = Team::shuffle(a[i / 4 * 2 + 1], from);
      words[i] = row < 8 ? lower : upper;
    }
  }

  // C += A * B. Unit::multiply(d, left, right, format) makes d the unit's product.
  template <class Unit, class Format>
  QUIRE_DEVICE static void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1, Format format) {
    using Layout = typename Unit::Layout;
    const int lane = Team::lane();
    std::uint32_t left[8];
    std::uint32_t right[8];
    gather_column(left, b0, b1, Layout::column(lane));
    gather_row(right, a, Layout::row(lane));
    float d[Layout::kRegisters];
    Unit::multiply(d, left, right, format);
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = 2 * (lane % 4) + i % 2;
      const int from = Layout::lane_of(lane / 4 + i / 2 * 8, column);
      // One of two registers, those of the first and the last such column.
      const int first = Layout::register_of(i % 2);
      const int last = Layout::register_of(6 + i % 2);
      const std::uint32_t in_first =
          Team::shuffle(__builtin_bit_cast(std::uint32_t, d[first]), from);
      const std::uint32_t in_last = Team::shuffle(__builtin_bit_cast(std::uint32_t, d[last]), from);
      c[i] += __builtin_bit_cast(float, Layout::register_of(column) == first ? in_first : in_last);
    }
  }

  QUIRE_DEVICE static void load_matrices(std::uint32_t (&r)[4], const void* row) {
    const int lane = Team::lane();
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto* at =
          static_cast<const std::uint32_t*>(Team::shuffle_address(row, 8 * i + lane / 4));
      r[i] = at[lane % 4];
    }
  }
  QUIRE_DEVICE static void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
    const int lane = Team::lane();
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int from = 8 * i + 2 * (lane % 4);
      const auto* low = static_cast<const std::uint16_t*>(Team::shuffle_address(row, from));
      const auto* high = static_cast<const std::uint16_t*>(Team::shuffle_address(row, from + 1));
      r[i] = low[lane / 4] | static_cast<std::uint32_t>(high[lane / 4]) << 16;
    }
  }

  QUIRE_DEVICE static std::uint32_t transpose_matrix(std::uint32_t two) {
    const int lane = Team::lane();
    const int from = 8 * (lane % 4) + lane / 8;  // row 2 * (l % 4), the word of column l / 4
    const int shift = lane / 4 % 2 * 16;
    const std::uint32_t low = Team::shuffle(two, from) >> shift & 0xffff;
    const std::uint32_t high = Team::shuffle(two, from + 4) >> shift & 0xffff;
    return low | high << 16;
  }
};

// Every element of C has one place, which holds the product of its own row and column; and a lane
// finds what it is to hold in the two registers that it looks at.
template <class Layout>
constexpr bool is_consistent_layout() {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const int i = Layout::register_of(column);
      if (Layout::row(Layout::lane_of(row, column)) != row) return false;
      if (i != Layout::register_of(column % 2) && i != Layout::register_of(6 + column % 2)) {
        return false;
      }
    }
  }
  return true;
}
static_assert(is_consistent_layout<BlocksLayout>() && is_consistent_layout<WaveLayout>());

}  // namespace quire::gpu
