// SPDX-License-Identifier: Apache-2.0
// Elements of any number format to f32, fast enough for whole caches: tables for 8-bit formats, the
// processor's own conversion for f16 where it has one. The same values as load_floats, NaN payloads
// apart.
#pragma once

#include <cstdint>

#include "quire/dtype.h"

namespace quire::dense {

// out[i] = element offset + i of `base`, without its scale.
void widen(DType dtype, const void* base, std::int64_t offset, std::int64_t count,
           float* out) noexcept;

}  // namespace quire::dense
