// SPDX-License-Identifier: Apache-2.0
// The append of the portable level: no instruction beyond the target's baseline.

#include "backends/cpu/level_headers.h"

namespace quire::cpu::scalar {

// Each uses the ones before it.
// clang-format off
#include "backends/cpu/scalar/vec.inl"
#include "backends/cpu/scalar/line.inl"
#include "backends/cpu/append_rows.inl"
// clang-format on

}  // namespace quire::cpu::scalar
