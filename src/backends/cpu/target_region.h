// SPDX-License-Identifier: Apache-2.0
// Code for instructions beyond the target's baseline, without compiler flags for a whole file: a
// flag would also compile the inline functions of shared headers with those instructions, and the
// linker may keep that copy for every caller.
//
//   QUIRE_TARGET_BEGIN("avx2,fma")      after the last #include of a shared header
//   ... functions ...
//   QUIRE_TARGET_END
#pragma once

#define QUIRE_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define QUIRE_TARGET_BEGIN(features) \
  QUIRE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define QUIRE_TARGET_END QUIRE_PRAGMA(clang attribute pop)
#define QUIRE_UNROLL QUIRE_PRAGMA(unroll)
#else
#define QUIRE_TARGET_BEGIN(features) \
  QUIRE_PRAGMA(GCC push_options) QUIRE_PRAGMA(GCC target(features))
#define QUIRE_TARGET_END QUIRE_PRAGMA(GCC pop_options)
#define QUIRE_UNROLL QUIRE_PRAGMA(GCC unroll 16)
#endif

// What must not become a call: a vector would travel through memory.
#define QUIRE_INLINE [[gnu::always_inline]] inline
#define QUIRE_INLINE_LAMBDA __attribute__((always_inline))
