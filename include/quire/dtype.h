// SPDX-License-Identifier: Apache-2.0
// The number formats a tensor may hold.
#pragma once

#include <cstdint>

#include "quire/export.h"

namespace quire {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // OCP e4m3: no infinity, largest 448
  kF8E5M2,  // OCP e5m2: largest finite 57344
  kI8,
};

constexpr std::int64_t dtype_bytes(DType dtype) noexcept {
  if (dtype == DType::kF32) return 4;
  return dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 1;
}

// The 8-bit formats are stored divided by a scale.
constexpr bool is_quantized(DType dtype) noexcept {
  return dtype_bytes(dtype) == 1;
}

// "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8".
QUIRE_API const char* dtype_name(DType dtype) noexcept;

}  // namespace quire
