// SPDX-License-Identifier: Apache-2.0
// The level avx512: F, BW, DQ and VL.
#if defined(__x86_64__)

#include <immintrin.h>

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

namespace quire::cpu::avx512 {

QUIRE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
// The second uses the first.
// clang-format off
#include "backends/cpu/avx512/vec.inl"
#include "backends/cpu/level.inl"
// clang-format on
QUIRE_TARGET_END

}  // namespace quire::cpu::avx512

#endif
