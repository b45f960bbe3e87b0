// SPDX-License-Identifier: Apache-2.0
// The portable level: no instruction beyond the target's baseline.
#include <algorithm>
#include <cmath>

#include "attention/mask.h"
#include "backends/cpu/attend_call.h"
#include "backends/cpu/scalar/tile.h"
#include "base/float_rows.h"
#include "base/number_formats.h"
#include "layout/kv_offset.h"
#include "layout/kv_rows.h"

namespace quire::cpu::scalar {

#include "backends/cpu/attend_tile.inl"

}  // namespace quire::cpu::scalar
