// SPDX-License-Identifier: Apache-2.0
// The append of the portable level: no instruction beyond the target's baseline.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "backends/cpu/append_call.h"
#include "backends/cpu/exp2_coefficients.h"
#include "backends/cpu/target_region.h"
#include "base/dispatch.h"
#include "base/number_formats.h"
#include "layout/kv_offset.h"

namespace quire::cpu::scalar {

// Each uses the ones before it.
// clang-format off
#include "backends/cpu/scalar/vec.inl"
#include "backends/cpu/scalar/line.inl"
#include "backends/cpu/append_rows.inl"
// clang-format on

}  // namespace quire::cpu::scalar
