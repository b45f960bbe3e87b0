// SPDX-License-Identifier: Apache-2.0
// The portable level: no instruction beyond the target's baseline.

#include "backends/cpu/level_headers.h"

namespace quire::cpu::scalar {

// The second uses the first.
// clang-format off
#include "backends/cpu/scalar/vec.inl"
#include "backends/cpu/level.inl"
// clang-format on

}  // namespace quire::cpu::scalar
