// SPDX-License-Identifier: Apache-2.0
// The portable level: no instruction beyond the target's baseline.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/mask.h"
#include "backends/cpu/attend_call.h"
#include "backends/cpu/chunk.h"
#include "backends/cpu/exp2_coefficients.h"
#include "backends/cpu/target_region.h"
#include "base/dispatch.h"
#include "base/number_formats.h"
#include "layout/kv_offset.h"

namespace quire::cpu::scalar {

// The second uses the first.
// clang-format off
#include "backends/cpu/scalar/vec.inl"
#include "backends/cpu/level.inl"
// clang-format on

}  // namespace quire::cpu::scalar
