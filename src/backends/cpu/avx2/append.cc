// SPDX-License-Identifier: Apache-2.0
// The append of the level avx2: AVX2, FMA and F16C.
#if defined(__x86_64__)

#include "backends/cpu/level_headers.h"

namespace quire::cpu::avx2 {

QUIRE_TARGET_BEGIN("avx2,fma,f16c")
// Each uses the ones before it.
// clang-format off
#include "backends/cpu/avx2/vec.inl"
#include "backends/cpu/avx2/line.inl"
#include "backends/cpu/append_rows.inl"
// clang-format on
QUIRE_TARGET_END

}  // namespace quire::cpu::avx2

#endif
