// SPDX-License-Identifier: Apache-2.0
// From a value known at run time to a template argument, by calling a lambda with a template
// parameter: [&]<class T>() { ... } or [&]<int kValue>() { ... }. Host only.
//
// What is listed is what is instantiated. A value outside the list is the caller's to refuse, with
// a reason; the functions that take a list say so by [[nodiscard]] false.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "quire/dtype.h"

namespace quire {

// Calls f.operator()<v>() for the listed v equal to `value`; false when none is.
template <int... kValues, class F>
[[nodiscard]] constexpr bool dispatch(int value, F&& f) {
  return ((value == kValues && (f.template operator()<kValues>(), true)) || ...);
}

// Calls f.operator()<T>() for the listed T whose DType is `dtype`; false when none is.
template <class... Ts, class F>
[[nodiscard]] constexpr bool dispatch_dtype_among(DType dtype, F&& f) {
  return ((dtype == kDTypeOf<Ts> && (f.template operator()<Ts>(), true)) || ...);
}

// Returns f.operator()<T>() for the storage type T of `dtype`, among all of them.
// REQUIRES: dtype is an enumerator.
template <class F>
constexpr decltype(auto) dispatch_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kF16:
      return f.template operator()<Float16>();
    case DType::kBF16:
      return f.template operator()<BFloat16>();
    case DType::kF8E4M3:
      return f.template operator()<Float8E4M3>();
    case DType::kF8E5M2:
      return f.template operator()<Float8E5M2>();
    case DType::kI8:
      return f.template operator()<std::int8_t>();
  }
  __builtin_unreachable();
}

}  // namespace quire
