// SPDX-License-Identifier: Apache-2.0
// Rows of any number format to and from f32, one dispatch for a whole row.
#pragma once

#include <cstdint>

#include "base/dispatch.h"
#include "base/number_formats.h"
#include "quire/dtype.h"

namespace quire {

// out[i] = element offset + i of `base`.
inline void load_floats(DType dtype, const void* base, std::int64_t offset, std::int64_t count,
                        float* __restrict out) noexcept {
  dispatch_dtype(dtype, [&]<class T>() {
    const T* __restrict row = static_cast<const T*>(base) + offset;
    for (std::int64_t i = 0; i < count; ++i) out[i] = to_float(row[i]);
  });
}

// Element offset + i of `base` = in[i], rounded to nearest even.
inline void store_floats(DType dtype, void* base, std::int64_t offset, std::int64_t count,
                         const float* __restrict in) noexcept {
  dispatch_dtype(dtype, [&]<class T>() {
    T* __restrict row = static_cast<T*>(base) + offset;
    for (std::int64_t i = 0; i < count; ++i) row[i] = from_float<T>(in[i]);
  });
}

}  // namespace quire
