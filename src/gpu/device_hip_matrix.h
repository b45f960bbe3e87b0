// SPDX-License-Identifier: Apache-2.0
// The second half of device_hip.h, which includes it: matrix fragments and the numbers in them.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "gpu/team_fragments.h"

namespace quire::gpu {

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

QUIRE_DEVICE void unpack(std::uint32_t two, float& low, float& high, BFloat16) {
  low = __builtin_bit_cast(float, two << 16);
  high = __builtin_bit_cast(float, two & 0xffff0000U);
}
QUIRE_DEVICE void unpack(std::uint32_t two, float& low, float& high, Float16) {
  const amd::Half2 both = amd::halves(two);
  low = static_cast<float>(both[0]);
  high = static_cast<float>(both[1]);
}

template <class T>
QUIRE_DEVICE std::uint32_t four_bytes(float a, float b, float c, float d, T) {
  const auto byte = [](float x) -> std::uint32_t {
    return __builtin_bit_cast(std::uint8_t, from_float<T>(x));
  };
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}

QUIRE_DEVICE std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t low = (a & 0xffffU) > (b & 0xffffU) ? a & 0xffffU : b & 0xffffU;
  const std::uint32_t high = a >> 16 > b >> 16 ? a & 0xffff0000U : b & 0xffff0000U;
  return high | low;
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
