// SPDX-License-Identifier: Apache-2.0
// One append call as the levels of the CPU backend see it, and its shares: rows x heads that one
// thread stores. Plain values that have been validated, so that nothing below throws or allocates.
//
// Shares of one call, and of calls on other threads, may meet inside a word of a tiled cache: a
// level writes the bytes of its own slots and reads none of the cache but scales.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "plan/plan.h"
#include "quire/backend.h"

namespace quire::cpu {

struct AppendCall {
  TensorView k;  // [num_rows, num_kv_heads, head_dim]
  TensorView v;  // [num_rows, num_kv_heads, value_dim]; absent with v_in_k
  KvCacheView cache;
  ArrayView<std::int64_t> slots;  // [num_rows], -1: not stored; no two equal
  bool streams = false;           // whole lines bypass the caches
};

// Row i of new_kv goes to slots[i].
AppendCall make_append_call(const NewKv& new_kv, const KvCacheView& cache,
                            ArrayView<std::int64_t> slots) noexcept;

struct AppendShare {
  IndexRange rows;
  IndexRange heads;
};

// The shares of a call: a few for every thread, one if it is not worth waking another.
struct AppendShares {
  std::int64_t rows_of_group = 0;
  std::int64_t num_row_groups = 0;
  std::int64_t num_head_groups = 0;

  std::int64_t size() const noexcept { return num_row_groups * num_head_groups; }
};
AppendShares make_append_shares(const AppendCall& call, int num_threads) noexcept;

// Together they cover every (row, head) once. Their borders keep rows together that fill a tile of
// 16 slots.
AppendShare append_share(const AppendCall& call, const AppendShares& shares,
                         std::int64_t index) noexcept;

// x / scale, by a product where that gives the same bits.
struct Divisor {
  float factor = 1.0F;
  bool divides = false;  // by the factor; otherwise multiplies
};

// The reciprocal of a power of two is exact: product and quotient round the same number. Both it
// and the scale stay clear of f32's subnormals.
constexpr Divisor divisor_of(float scale) noexcept {
  const std::int32_t bits = number_formats_internal::bits_of(scale);
  const std::int32_t exponent = bits >> number_formats_internal::kF32MantissaBits;
  const bool power_of_two = (bits & (number_formats_internal::kF32HiddenBit - 1)) == 0;
  if (!power_of_two || exponent < 1 || exponent > 253) return {.factor = scale, .divides = true};
  return {.factor = number_formats_internal::float_of((254 - exponent) << 23), .divides = false};
}

// What a level provides: stores the rows and heads of one share.
using AppendRows = void(const AppendCall& call, const AppendShare& share) noexcept;

namespace scalar {
AppendRows append_rows;
}
#if defined(__x86_64__)
namespace avx2 {
AppendRows append_rows;
}
namespace avx512 {
AppendRows append_rows;
}
#endif

}  // namespace quire::cpu
