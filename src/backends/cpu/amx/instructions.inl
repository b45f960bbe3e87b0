// SPDX-License-Identifier: Apache-2.0
// The instructions of AMX and AVX512_FP16 that the level amx uses, and no other file names.
// tests/emulated_cpu/ has the same for machines without them.
//
// GCC 12's intrinsics of AMX do not say that they read memory, so these are written out; one
// instruction of AVX512_FP16 is no reason to let compilers use all.

// Whether this process may use the tile registers, which it does not by default.
inline bool ask_for_tiles() noexcept {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#define QUIRE_TILE_CONFIGURE(config) asm volatile("ldtilecfg %0" ::"m"(config) : "memory")
#define QUIRE_TILE_RELEASE() asm volatile("tilerelease" ::: "memory")
// It would break the string.
// clang-format off
#define QUIRE_TILE_LOAD(tile, p, stride)                                                \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(p), "r"((std::int64_t)(stride)) \
               : "memory")
// clang-format on
// Of what is not read again soon.
#define QUIRE_TILE_STREAM(tile, p, stride)                                                \
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(p), "r"((std::int64_t)(stride)) \
               : "memory")
#define QUIRE_TILE_STORE(tile, p, stride)                                                   \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(p), "r"((std::int64_t)(stride)) \
               : "memory")
#define QUIRE_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define QUIRE_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

// 32 integers as f16.
QUIRE_INLINE __m512i words_to_half(__m512i words) noexcept {
  __m512i half;
  asm("vcvtw2ph %1, %0" : "=v"(half) : "v"(words));
  return half;
}
