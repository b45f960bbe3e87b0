// SPDX-License-Identifier: Apache-2.0
// Matrix fragments on the emulator, as plain loops over the operands of all lanes. The layouts are
// those of the hardware, so a kernel written for it is the same source here. They are collectives
// of 32 or 64 lanes and order no memory. Products are exact; their sum over k is taken in f64 and
// rounded to f32 when it is added to the accumulator (hardware differs in the last bits).
//
// A register holds two 16-bit numbers, the one with the lower index in its low half.
#pragma once

#include <cstdint>

#include "gpu/emulator/simt.h"

namespace quire::simt {

// --- 32 lanes: NVIDIA's mma.sync.m16n8k16 (row.col) and ldmatrix
// A warp of 64 has two such teams, lanes [0, 32) and [32, 64), and `lane` counts within the team.
// With g = lane / 4 and t = lane % 4:
//   a[0]: A[g][2t, 2t+1]    a[1]: A[g+8][2t, 2t+1]    a[2]: A[g][2t+8, 2t+9]    a[3]: A[g+8][2t+8,
//   2t+9] b0: B[2t, 2t+1][g]      b1: B[2t+8, 2t+9][g] d[0, 1]: D[g][2t, 2t+1]                d[2,
//   3]: D[g+8][2t, 2t+1]
// D += A * B with A 16 x 16, B 16 x 8, D 16 x 8.
// REQUIRES: all lanes of the team exist and take part.
void mma_m16n8k16_bf16(float* d /* [4] */, const std::uint32_t* a /* [4] */, std::uint32_t b0,
                       std::uint32_t b1, Site site = Site::here()) noexcept;
void mma_m16n8k16_f16(float* d /* [4] */, const std::uint32_t* a /* [4] */, std::uint32_t b0,
                      std::uint32_t b1, Site site = Site::here()) noexcept;

// Four 8 x 8 matrices of 16-bit elements: lane 8 m + r gives the address of row r of matrix m, 16
// bytes in shared memory on a multiple of 16. Lane l gets of matrix m in registers[m] the elements
// [l / 4][2 (l % 4), +1]; transposed: [2 (l % 4), +1][l / 4].
// REQUIRES: all lanes of the team exist and take part.
void load_matrix_x4(std::uint32_t* registers /* [4] */, const void* row,
                    Site site = Site::here()) noexcept;
void load_matrix_x4_transposed(std::uint32_t* registers /* [4] */, const void* row,
                               Site site = Site::here()) noexcept;
// Two matrices: the addresses of lanes 0 to 15 count.
void load_matrix_x2(std::uint32_t* registers /* [2] */, const void* row,
                    Site site = Site::here()) noexcept;
void load_matrix_x2_transposed(std::uint32_t* registers /* [2] */, const void* row,
                               Site site = Site::here()) noexcept;

// An 8 x 8 matrix of 16-bit elements, lane l holding [l / 4][2 (l % 4), +1]: returns the same of
// the transposed matrix (movmatrix). REQUIRES: all lanes of the team exist and take part.
std::uint32_t transpose_matrix(std::uint32_t two, Site site = Site::here()) noexcept;

// --- 64 lanes: AMD's mfma 16x16x16
// With i = lane % 16 and q = lane / 16:
//   a[0]: A[i][4q, 4q+1]    a[1]: A[i][4q+2, 4q+3]
//   b[0]: B[4q, 4q+1][i]    b[1]: B[4q+2, 4q+3][i]
//   d[r]: D[4q + r][i]
// D += A * B, all 16 x 16.
// REQUIRES: warp_width() == 64.
void mfma_16x16x16_bf16(float* d /* [4] */, const std::uint32_t* a /* [2] */,
                        const std::uint32_t* b /* [2] */, Site site = Site::here()) noexcept;
void mfma_16x16x16_f16(float* d /* [4] */, const std::uint32_t* a /* [2] */,
                       const std::uint32_t* b /* [2] */, Site site = Site::here()) noexcept;

}  // namespace quire::simt
