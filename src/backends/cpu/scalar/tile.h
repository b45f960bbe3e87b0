// SPDX-License-Identifier: Apache-2.0
// The tile primitives of the portable level: plain loops over contiguous floats that every compiler
// vectorises for the baseline of its target. A level provides exactly these names.
//
// No primitive reassociates a sum, so each result is the same for every tile it is computed in.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "backends/cpu/attend_call.h"

namespace quire::cpu::scalar {

inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// e^x for x <= 0, 0 for -inf and below -87.3 where f32 has only subnormals left; relative error
// 2e-7. n = round(x / ln 2) by the magic sum, r = x - n ln 2 in two parts, then a degree 6 Taylor
// polynomial on |r| <= 0.347, whose next term is 1.2e-7, and n added to the exponent.
inline float exp_negative(float x) noexcept {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
  constexpr float kSmallest = -87.3F;
  const float clamped = x > kSmallest ? x : kSmallest;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const auto exponent = static_cast<std::int32_t>(n) << 23;
  const float result = __builtin_bit_cast(float, __builtin_bit_cast(std::int32_t, p) + exponent);
  return x > kSmallest ? result : (x == x ? 0.0F : x);
}

// out[j][i] = in[i][j]: rows of `in` are keys, so that scores vectorise over keys.
inline void transpose(const float* __restrict in /*[rows][columns]*/, std::int64_t rows,
                      std::int64_t columns, float* __restrict out /*[columns][stride]*/,
                      std::int64_t stride) noexcept {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out[j * stride + i] = in[i * columns + j];
  }
}

// s[0..keys) = sum over d of q[d] * kt[d][..].
inline void dot_keys(const float* __restrict q /*[dims]*/,
                     const float* __restrict kt /*[dims][stride]*/, std::int64_t dims,
                     std::int64_t stride, std::int64_t keys, float* __restrict s) noexcept {
  for (std::int64_t j = 0; j < keys; ++j) s[j] = 0.0F;
  for (std::int64_t d = 0; d < dims; ++d) {
    const float factor = q[d];
    const float* row = kt + d * stride;
    for (std::int64_t j = 0; j < keys; ++j) s[j] += factor * row[j];
  }
}

// A NaN among what a row may see must reach its output, so it wins.
inline float row_max(const float* __restrict s, std::int64_t keys) noexcept {
  float result = kNegativeInfinity;
  for (std::int64_t j = 0; j < keys; ++j) result = larger_or_nan(s[j], result);
  return result;
}

// s = e^(s - max) in place; returns the sum.
inline float exp_row(float* __restrict s, std::int64_t keys, float max) noexcept {
  for (std::int64_t j = 0; j < keys; ++j) s[j] = exp_negative(s[j] - max);
  float sum = 0.0F;
  for (std::int64_t j = 0; j < keys; ++j) sum += s[j];
  return sum;
}

inline void scale_row(float* __restrict o, std::int64_t dims, float factor) noexcept {
  for (std::int64_t d = 0; d < dims; ++d) o[d] *= factor;
}

// o += sum over j of p[j] * v[j]. A key with p = 0 is not touched: its V may be garbage, and
// 0 * NaN would spread.
inline void accumulate_values(const float* __restrict p /*[keys]*/,
                              const float* __restrict v /*[keys][dims]*/, std::int64_t keys,
                              std::int64_t dims, float* __restrict o /*[dims]*/) noexcept {
  for (std::int64_t j = 0; j < keys; ++j) {
    const float factor = p[j];
    if (factor == 0.0F) continue;
    const float* row = v + j * dims;
    for (std::int64_t d = 0; d < dims; ++d) o[d] += factor * row[d];
  }
}

}  // namespace quire::cpu::scalar
