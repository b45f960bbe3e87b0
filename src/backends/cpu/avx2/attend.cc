// SPDX-License-Identifier: Apache-2.0
// The level avx2: AVX2, FMA and F16C.
#if defined(__x86_64__)

#include "backends/cpu/level_headers.h"

namespace quire::cpu::avx2 {

QUIRE_TARGET_BEGIN("avx2,fma,f16c")
// The second uses the first.
// clang-format off
#include "backends/cpu/avx2/vec.inl"
#include "backends/cpu/level.inl"
// clang-format on
QUIRE_TARGET_END

}  // namespace quire::cpu::avx2

#endif
