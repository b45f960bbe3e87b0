// SPDX-License-Identifier: Apache-2.0
// 64-bit arithmetic on sizes and strides that a caller brought: overflow is an Error that names
// what was computed, never a wrong number.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace quire {

inline std::int64_t checked_mul(const char* what, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  require(!__builtin_mul_overflow(a, b, &product), what, " does not fit in 64 bits: ", a, " * ", b);
  return product;
}

inline std::int64_t checked_add(const char* what, std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  require(!__builtin_add_overflow(a, b, &sum), what, " does not fit in 64 bits: ", a, " + ", b);
  return sum;
}

// The smallest multiple of `multiple` that is >= value. REQUIRES: value >= 0, multiple > 0.
inline std::int64_t checked_round_up(const char* what, std::int64_t value, std::int64_t multiple) {
  return checked_add(what, value, multiple - 1) / multiple * multiple;
}

}  // namespace quire
