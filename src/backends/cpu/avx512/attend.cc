// SPDX-License-Identifier: Apache-2.0
// The level avx512: F, BW, DQ and VL.
#if defined(__x86_64__)

#include "backends/cpu/level_headers.h"

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
