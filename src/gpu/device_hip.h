// SPDX-License-Identifier: Apache-2.0
// device_api.h for AMD GPUs: matrix cores of gfx90a, in waves of 64, and of gfx11, in waves of 32.
// Clang alone compiles it, without the vendor's headers and device library; so far nothing launches
// it, and tests/device/ proves that every kernel compiles.
//
// A team is a wave. In waves of 64 the upper half takes no part (takes_part) and a block is
// launched with twice its threads: matrix instructions write the registers of lanes that are
// switched off too, so a second team in the wave, waiting at the end of a loop that the first is
// still in, could lose what it had computed.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "gpu/tanh_double.h"

#define QUIRE_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define QUIRE_DEVICE_RARE __attribute__((device)) inline __attribute__((noinline))
#if !defined(QUIRE_UNROLL)
#define QUIRE_UNROLL _Pragma("unroll")
#endif
#define QUIRE_NO_UNROLL _Pragma("unroll 1")

#include "gpu/team_fragments.h"

namespace quire::gpu {

#if defined(__GFX11__)
inline constexpr int kWave = 32;
#else
inline constexpr int kWave = 64;
#endif

// First in every kernel: threads for which this is false return.
QUIRE_DEVICE bool takes_part() {
  return __builtin_amdgcn_workitem_id_x() % kWave < 32;
}
QUIRE_DEVICE int thread_index() {
  const auto hardware = static_cast<int>(__builtin_amdgcn_workitem_id_x());
  return hardware / kWave * 32 + hardware % 32;
}
QUIRE_DEVICE int num_threads() {
  return static_cast<int>(__builtin_amdgcn_workgroup_size_x()) / (kWave / 32);
}
QUIRE_DEVICE int block_index() {
  return static_cast<int>(__builtin_amdgcn_workgroup_id_x());
}
QUIRE_DEVICE int num_blocks() {
  return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}

QUIRE_DEVICE int recomputed(int x) {
  asm volatile("" : "+v"(x));
  return x;
}

QUIRE_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// A wave's accesses to memory are in order; only the compiler must keep them so.
QUIRE_DEVICE void sync_team() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
QUIRE_DEVICE void fence() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
}

QUIRE_DEVICE int shuffle(int value, int from) {
  return __builtin_amdgcn_ds_bpermute(4 * (from & 31), value);
}
QUIRE_DEVICE float shuffle(float value, int from) {
  return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(int, value), from));
}
QUIRE_DEVICE int shuffle_xor(int value, int mask) {
  return shuffle(value, thread_index() ^ mask);
}
QUIRE_DEVICE float shuffle_xor(float value, int mask) {
  return shuffle(value, thread_index() ^ mask);
}
QUIRE_DEVICE bool any(bool condition) {
#if defined(__GFX11__)
  return __builtin_amdgcn_ballot_w32(condition) != 0;
#else
  return __builtin_amdgcn_ballot_w64(condition) != 0;
#endif
}

QUIRE_DEVICE int atomic_add(int* at, int value) {
  return __scoped_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
QUIRE_DEVICE std::uint64_t atomic_min(std::uint64_t* at, std::uint64_t value) {
  return __scoped_atomic_fetch_min(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

QUIRE_DEVICE float exp2_fast(float x) {
  return __builtin_amdgcn_exp2f(x);
}
QUIRE_DEVICE float exp2_exact(float x) {
  return __builtin_exp2f(x);
}
QUIRE_DEVICE double tanh_exact(double x) {
  return tanh_double(x);
}
QUIRE_DEVICE float tanh_exact(float x) {
  return static_cast<float>(tanh_double(static_cast<double>(x)));
}
QUIRE_DEVICE float exp_exact(float x) {
  return __builtin_expf(x);
}
QUIRE_DEVICE float log_exact(float x) {
  return __builtin_logf(x);
}
QUIRE_DEVICE float max_of(float a, float b) {
  return __builtin_fmaxf(a, b);
}
QUIRE_DEVICE float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

QUIRE_DEVICE float load_shared_by_blocks(const float* at) {
  return __builtin_bit_cast(
      float, __scoped_atomic_load_n(reinterpret_cast<const std::uint32_t*>(at), __ATOMIC_RELAXED,
                                    __MEMORY_SCOPE_DEVICE));
}
struct alignas(16) Float4 {
  float x, y, z, w;
};
QUIRE_DEVICE Float4 load_shared_by_blocks(const Float4* at) {
  return {load_shared_by_blocks(&at->x), load_shared_by_blocks(&at->y),
          load_shared_by_blocks(&at->z), load_shared_by_blocks(&at->w)};
}

extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char quire_shared_memory[];
QUIRE_DEVICE unsigned char* shared_memory() {
  return quire_shared_memory;
}

// Through registers: they are there at once, and there are no groups to wait for.
QUIRE_DEVICE void async_copy16(void* shared, const void* source, bool valid) {
  struct alignas(16) Piece {
    std::uint32_t x[4];
  };
  Piece piece{};
  if (valid) piece = *static_cast<const Piece*>(source);
  *static_cast<Piece*>(shared) = piece;
}
QUIRE_DEVICE void async_copy4(void* shared, const void* source, bool valid) {
  std::uint32_t piece = 0;
  if (valid) piece = *static_cast<const std::uint32_t*>(source);
  *static_cast<std::uint32_t*>(shared) = piece;
}
QUIRE_DEVICE void async_commit() {}
template <int kPending>
QUIRE_DEVICE void async_wait() {}

namespace amd {

using Half = _Float16;
using Half2 = Half __attribute__((ext_vector_type(2)));

// Two numbers of a word.
QUIRE_DEVICE Half2 halves(std::uint32_t word) {
  return __builtin_bit_cast(Half2, word);
}
QUIRE_DEVICE std::uint32_t word(Half2 two) {
  return __builtin_bit_cast(std::uint32_t, two);
}

struct Team {
  QUIRE_DEVICE static int lane() { return thread_index() % 32; }
  QUIRE_DEVICE static std::uint32_t shuffle(std::uint32_t value, int from) {
    return static_cast<std::uint32_t>(gpu::shuffle(static_cast<int>(value), from));
  }
  // REQUIRES: shared memory, whose own addresses have 32 bits.
  QUIRE_DEVICE static const void* shuffle_address(const void* address, int from) {
    using Shared = const __attribute__((address_space(3))) void*;
    const auto own = reinterpret_cast<std::uintptr_t>((Shared)address);
    const std::uint32_t other = shuffle(static_cast<std::uint32_t>(own), from);
    return (const void*)reinterpret_cast<Shared>(static_cast<std::uintptr_t>(other));
  }
};

#if defined(__GFX11__)

struct Unit {
  using Layout = WaveLayout;
  template <class Format>
  QUIRE_DEVICE static void multiply(float (&d)[8], const std::uint32_t (&left)[8],
                                    const std::uint32_t (&right)[8], Format) {
    using Sum = float __attribute__((ext_vector_type(8)));
    Sum sum = {};
    if constexpr (__is_same(Format, Float16)) {
      using Operand = Half __attribute__((ext_vector_type(16)));
      sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(operand<Operand>(left),
                                                       operand<Operand>(right), sum);
    } else {
      using Operand = short __attribute__((ext_vector_type(16)));
      sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(operand<Operand>(left),
                                                        operand<Operand>(right), sum);
    }
    QUIRE_UNROLL
    for (int i = 0; i < 8; ++i) d[i] = sum[i];
  }
  template <class Operand>
  QUIRE_DEVICE static Operand operand(const std::uint32_t (&words)[8]) {
    struct Eight {
      std::uint32_t x[8];
    };
    return __builtin_bit_cast(Operand, reinterpret_cast<const Eight&>(words));
  }
};

#else

struct Unit {
  using Layout = BlocksLayout;
  using Sum = float __attribute__((ext_vector_type(4)));
  QUIRE_DEVICE static void multiply(float (&d)[4], const std::uint32_t (&left)[8],
                                    const std::uint32_t (&right)[8], BFloat16) {
    using Four = short __attribute__((ext_vector_type(4)));
    Sum sum = {};
    QUIRE_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const std::uint64_t l = left[i] | static_cast<std::uint64_t>(left[i + 1]) << 32;
      const std::uint64_t r = right[i] | static_cast<std::uint64_t>(right[i + 1]) << 32;
      sum = __builtin_amdgcn_mfma_f32_4x4x4bf16_1k(__builtin_bit_cast(Four, l),
                                                   __builtin_bit_cast(Four, r), sum, 0, 0, 0);
    }
    store(d, sum);
  }
  // gfx90a takes subnormal f16 for 0, which numbers of a cache and weights may be: as f32, one k at
  // a time.
  QUIRE_DEVICE static void multiply(float (&d)[4], const std::uint32_t (&left)[8],
                                    const std::uint32_t (&right)[8], Float16) {
    Sum sum = {};
    QUIRE_UNROLL
    for (int i = 0; i < 16; ++i) {
      sum = __builtin_amdgcn_mfma_f32_4x4x1f32(static_cast<float>(halves(left[i / 2])[i % 2]),
                                               static_cast<float>(halves(right[i / 2])[i % 2]), sum,
                                               0, 0, 0);
    }
    store(d, sum);
  }
  QUIRE_DEVICE static void store(float (&d)[4], Sum sum) {
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) d[i] = sum[i];
  }
};

#endif

using Fragments = TeamFragments<Team>;

}  // namespace amd

QUIRE_DEVICE void load_matrices(std::uint32_t (&r)[4], const void* row) {
  amd::Fragments::load_matrices(r, row);
}
QUIRE_DEVICE void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  amd::Fragments::load_matrices_transposed(r, row);
}
QUIRE_DEVICE std::uint32_t transpose_matrix(std::uint32_t two) {
  return amd::Fragments::transpose_matrix(two);
}
template <class Format>
QUIRE_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1, Format format) {
  amd::Fragments::multiply_add<amd::Unit>(c, a, b0, b1, format);
}

QUIRE_DEVICE std::uint32_t pack(float low, float high, BFloat16) {
  return from_float<BFloat16>(low).bits |
         static_cast<std::uint32_t>(from_float<BFloat16>(high).bits) << 16;
}
QUIRE_DEVICE std::uint32_t pack(float low, float high, Float16) {
  return amd::word(amd::Half2{static_cast<amd::Half>(low), static_cast<amd::Half>(high)});
}

QUIRE_DEVICE std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high,
                                        std::uint32_t selector) {
  // The instruction wants a byte for each digit.
  const std::uint32_t by_two = (selector | selector << 8) & 0x00ff00ff;
  const std::uint32_t by_one = (by_two | by_two << 4) & 0x07070707;
  return __builtin_amdgcn_perm(high, low, by_one);
}

QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, Float8E4M3) {
  // The code 7 bits up is the f16 of 2^-8 of the value, subnormals included; only the code of NaN
  // must be made one.
  const std::uint32_t spread = select_bytes(bytes, 0, half != 0 ? 0x3424 : 0x1404);
  const std::uint32_t code = (spread & 0x80008000U) | ((spread & 0x7f007f00U) >> 1);
  std::uint32_t packed = amd::word(amd::halves(code) * amd::Half2{256.0F16, 256.0F16});
  if ((spread & 0x7f00U) == 0x7f00U) packed |= 0x7e00U;
  if ((spread & 0x7f000000U) == 0x7f000000U) packed |= 0x7e000000U;
  return packed;
}
QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, Float8E5M2) {
  return select_bytes(bytes, 0, half != 0 ? 0x3424 : 0x1404);  // the upper byte of the f16
}
QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, std::int8_t) {
  // 1024 + (x + 128) as an f16 has x + 128 as its lower byte.
  const std::uint32_t biased =
      select_bytes(bytes ^ 0x80808080U, 0x64646464U, half != 0 ? 0x4342 : 0x4140);
  return amd::word(amd::halves(biased) - amd::Half2{1152.0F16, 1152.0F16});
}

}  // namespace quire::gpu
