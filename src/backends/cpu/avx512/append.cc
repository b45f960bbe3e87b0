// SPDX-License-Identifier: Apache-2.0
// The append of the level avx512: F, BW, DQ and VL.
#if defined(__x86_64__)

#include "backends/cpu/level_headers.h"

namespace quire::cpu::avx512 {

QUIRE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
// Each uses the ones before it.
// clang-format off
#include "backends/cpu/avx512/vec.inl"
#include "backends/cpu/avx512/line.inl"
#include "backends/cpu/append_rows.inl"
// clang-format on
QUIRE_TARGET_END

}  // namespace quire::cpu::avx512

#endif
