// SPDX-License-Identifier: Apache-2.0
// The number formats of queries, outputs and the KV cache, as storage types with conversions to
// and from f32 that give the same bits on every CPU and GPU:
//
//   type         sign exponent mantissa  largest  conversion of a larger f32, of infinity
//   Float16       1      5        10       65504  infinity
//   BFloat16      1      8         7    3.39e+38  infinity
//   Float8E4M3    1      4         3         448  +-448 (OCP: no infinity, NaN is 0x7f and 0xff)
//   Float8E5M2    1      5         2       57344  +-57344 (0x7c and 0xfc still decode to infinity)
//   int8_t        two's complement           127  127 or -128
//
// Invariants:
// - Decoding is exact. Encoding rounds once, from f32 to the stored format, to nearest even.
// - NaN stays NaN; int8_t, which has none, stores 0. The 16-bit formats keep its sign and upper
//   payload and make it quiet, as x86 does. The 8-bit formats store 0x7f whatever the sign, as
//   NVIDIA does: the sign of a NaN differs between processors, and stored 8-bit bytes must not.
// - Encoding uses integers alone and decoding only exact float operations, so neither depends on
//   the rounding mode, on flushing of subnormals, or on contraction into fused multiply-adds.
//   quantize() and token_head_scale() divide, and do depend on the first two.
//
// Everything here is a pure function without allocation or exceptions, for host and device.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "quire/dtype.h"

// GCC and Clang would replace the divisions below by reciprocals and assume that NaN never occurs.
// nvcc announces its fast mathematics by no macro; ieee_divide() names the instruction instead.
#if defined(__FAST_MATH__)
#error "number_formats.h must not be compiled with -ffast-math: stored bytes would change"
#endif

namespace quire {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};
// Arrays of these are the tensors of the caller and of the devices.
static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);
static_assert(sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1);

// What distinguishes one stored format from another. "Code" is the stored bits without the sign.
template <class T>
struct NumberFormat;

template <>
struct NumberFormat<float> {
  static constexpr DType kDType = DType::kF32;
  static constexpr float kMaxFinite = 0x1.fffffep127f;
};

template <>
struct NumberFormat<Float16> {
  static constexpr DType kDType = DType::kF16;
  static constexpr float kMaxFinite = 65504.0f;
  static constexpr int kMantissaBits = 10;
  static constexpr int kExponentBias = 15;
  static constexpr std::int32_t kOverflowCode = 0x7c00;      // infinity
  static constexpr std::int32_t kFirstSpecialCode = 0x7c00;  // infinity, then NaN
};

template <>
struct NumberFormat<BFloat16> {
  static constexpr DType kDType = DType::kBF16;
  static constexpr float kMaxFinite = 0x1.fep127f;
};

template <>
struct NumberFormat<Float8E4M3> {
  static constexpr DType kDType = DType::kF8E4M3;
  static constexpr float kMaxFinite = 448.0f;
  static constexpr int kMantissaBits = 3;
  static constexpr int kExponentBias = 7;
  static constexpr std::int32_t kOverflowCode = 0x7e;      // 448
  static constexpr std::int32_t kFirstSpecialCode = 0x7f;  // NaN
};

template <>
struct NumberFormat<Float8E5M2> {
  static constexpr DType kDType = DType::kF8E5M2;
  static constexpr float kMaxFinite = 57344.0f;
  static constexpr int kMantissaBits = 2;
  static constexpr int kExponentBias = 15;
  static constexpr std::int32_t kOverflowCode = 0x7b;      // 57344
  static constexpr std::int32_t kFirstSpecialCode = 0x7c;  // infinity, then NaN
};

template <>
struct NumberFormat<std::int8_t> {
  static constexpr DType kDType = DType::kI8;
  static constexpr float kMaxFinite = 127.0f;
};

namespace number_formats_internal {

inline constexpr std::int32_t kSignBit = INT32_MIN;
inline constexpr std::int32_t kInfinityBits = 0x7f800000;
inline constexpr int kF32MantissaBits = 23;
inline constexpr int kF32Bias = 127;
inline constexpr std::int32_t kF32HiddenBit = 1 << kF32MantissaBits;
// The largest shift of an int32_t; a 24-bit significand rounds to zero from 26 on.
inline constexpr std::int32_t kLargestShift = 31;

// std::bit_cast, min and max are no device functions.
QUIRE_HOST_DEVICE constexpr std::int32_t bits_of(float x) noexcept {
  return __builtin_bit_cast(std::int32_t, x);
}
QUIRE_HOST_DEVICE constexpr float float_of(std::int32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}
QUIRE_HOST_DEVICE constexpr std::int32_t smaller(std::int32_t a, std::int32_t b) noexcept {
  return a < b ? a : b;
}
QUIRE_HOST_DEVICE constexpr std::int32_t larger(std::int32_t a, std::int32_t b) noexcept {
  return a < b ? b : a;
}

// value / 2^shift to the nearest integer, ties to even.
// REQUIRES: 0 <= value < 2^30, 1 <= shift <= kLargestShift.
QUIRE_HOST_DEVICE constexpr std::int32_t round_shift(std::int32_t value,
                                                     std::int32_t shift) noexcept {
  const std::int32_t below_half = (1 << (shift - 1)) - 1;
  const std::int32_t odd = (value >> shift) & 1;
  return (value + below_half + odd) >> shift;
}

// The significand of a normal f32, hidden bit included: magnitude = significand * 2^(exponent-150).
// Subnormals get a hidden bit they do not have, which is harmless where all of them round to zero.
QUIRE_HOST_DEVICE constexpr std::int32_t significand_of(std::int32_t magnitude) noexcept {
  return (magnitude & (kF32HiddenBit - 1)) | kF32HiddenBit;
}

// The code of format T nearest to an f32 magnitude. REQUIRES: not a NaN.
//
// Below T's smallest normal exponent the spacing of codes stays that of the smallest exponent, so
// one formula serves normals and subnormals: clamp the exponent from below, and shift out one more
// bit for every step of the clamp. The hidden bit, and a carry out of the mantissa, add one to the
// exponent field, which is what it should become.
template <class T>
QUIRE_HOST_DEVICE constexpr std::int32_t encode_magnitude(std::int32_t magnitude) noexcept {
  using Format = NumberFormat<T>;
  constexpr int kDroppedBits = kF32MantissaBits - Format::kMantissaBits;
  constexpr std::int32_t kMinExponent = kF32Bias + 1 - Format::kExponentBias;
  const std::int32_t exponent = magnitude >> kF32MantissaBits;
  const std::int32_t clamped = larger(exponent, kMinExponent);
  const std::int32_t shift = smaller(kDroppedBits + (clamped - exponent), kLargestShift);
  const std::int32_t code = round_shift(significand_of(magnitude), shift) +
                            ((clamped - kMinExponent) << Format::kMantissaBits);
  return smaller(code, Format::kOverflowCode);
}

// The f32 bits of a code of format T.
template <class T>
QUIRE_HOST_DEVICE constexpr std::int32_t decode_magnitude(std::int32_t code) noexcept {
  using Format = NumberFormat<T>;
  constexpr std::int32_t kRebias = (kF32Bias - Format::kExponentBias) << kF32MantissaBits;
  // The value of code 1. Counting it is exact and, unlike f32 subnormals, never flushed.
  constexpr float kSubnormalStep =
      float_of((kF32Bias + 1 - Format::kExponentBias - Format::kMantissaBits) << kF32MantissaBits);
  const std::int32_t subnormal = bits_of(static_cast<float>(code) * kSubnormalStep);
  const std::int32_t normal = (code << (kF32MantissaBits - Format::kMantissaBits)) + kRebias;
  // T's largest exponent field is 2 * bias + 1. A second rebias takes it to 255, f32's infinity
  // and NaN; the mantissa of an infinity is zero and that of a NaN is not in either format.
  const std::int32_t special = code >= Format::kFirstSpecialCode ? kRebias : 0;
  // A mask and not a conditional: compilers would skip the multiplication, a possible trap, by a
  // branch, and then cannot vectorise a loop over elements.
  const std::int32_t is_subnormal = -static_cast<std::int32_t>(code < (1 << Format::kMantissaBits));
  return (subnormal & is_subnormal) | ((normal + special) & ~is_subnormal);
}

// One IEEE division, whatever nvcc's -prec-div says.
QUIRE_HOST_DEVICE constexpr float ieee_divide(float x, float y) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fdiv_rn(x, y);
#endif
  return x / y;
}

template <class T>
QUIRE_HOST_DEVICE constexpr float decode(T x) noexcept {
  constexpr int kSignPosition = 8 * sizeof(T) - 1;
  const std::int32_t sign = (x.bits >> kSignPosition) != 0 ? kSignBit : 0;
  return float_of(sign | decode_magnitude<T>(x.bits & ((1 << kSignPosition) - 1)));
}

template <class Float8>
QUIRE_HOST_DEVICE constexpr Float8 encode_float8(float x) noexcept {
  const std::int32_t magnitude = bits_of(x) & ~kSignBit;
  const std::int32_t sign = (bits_of(x) >> 24) & 0x80;
  const std::int32_t code = sign | encode_magnitude<Float8>(magnitude);
  return Float8{static_cast<std::uint8_t>(magnitude > kInfinityBits ? 0x7f : code)};
}

}  // namespace number_formats_internal

// Stored value to f32, exactly. 8-bit values are still to be multiplied by their scale.
QUIRE_HOST_DEVICE constexpr float to_float(float x) noexcept {
  return x;
}

QUIRE_HOST_DEVICE constexpr float to_float(Float16 x) noexcept {
  return number_formats_internal::decode(x);
}

// A BFloat16 is the upper half of an f32.
QUIRE_HOST_DEVICE constexpr float to_float(BFloat16 x) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

QUIRE_HOST_DEVICE constexpr float to_float(Float8E4M3 x) noexcept {
  return number_formats_internal::decode(x);
}

QUIRE_HOST_DEVICE constexpr float to_float(Float8E5M2 x) noexcept {
  return number_formats_internal::decode(x);
}

QUIRE_HOST_DEVICE constexpr float to_float(std::int8_t x) noexcept {
  return x;
}

// f32 to a stored value: rounds to nearest even; beyond the largest value, 16-bit formats become
// infinite and 8-bit formats saturate.
template <class T>
QUIRE_HOST_DEVICE constexpr T from_float(float x) noexcept;

template <>
QUIRE_HOST_DEVICE constexpr float from_float<float>(float x) noexcept {
  return x;
}

template <>
QUIRE_HOST_DEVICE constexpr Float16 from_float<Float16>(float x) noexcept {
  namespace internal = number_formats_internal;
  const std::int32_t magnitude = internal::bits_of(x) & ~internal::kSignBit;
  const std::int32_t sign = (internal::bits_of(x) >> 16) & 0x8000;
  const std::int32_t quiet_nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const std::int32_t code = magnitude > internal::kInfinityBits
                                ? quiet_nan
                                : internal::encode_magnitude<Float16>(magnitude);
  return {static_cast<std::uint16_t>(sign | code)};
}

// Equal exponent ranges make this a rounding of the bits: a carry moves to the next exponent, or
// to infinity, and subnormals are nothing special.
template <>
QUIRE_HOST_DEVICE constexpr BFloat16 from_float<BFloat16>(float x) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
QUIRE_HOST_DEVICE constexpr Float8E4M3 from_float<Float8E4M3>(float x) noexcept {
  return number_formats_internal::encode_float8<Float8E4M3>(x);
}

template <>
QUIRE_HOST_DEVICE constexpr Float8E5M2 from_float<Float8E5M2>(float x) noexcept {
  return number_formats_internal::encode_float8<Float8E5M2>(x);
}

template <>
QUIRE_HOST_DEVICE constexpr std::int8_t from_float<std::int8_t>(float x) noexcept {
  namespace internal = number_formats_internal;
  constexpr std::int32_t kOnesExponent = internal::kF32Bias + internal::kF32MantissaBits;
  // The smallest shift leaves 8 bits: any magnitude from 128 on comes out as 128 or more.
  constexpr std::int32_t kSmallestShift = 16;
  const std::int32_t magnitude = internal::bits_of(x) & ~internal::kSignBit;
  const bool negative = internal::bits_of(x) < 0;
  const std::int32_t shift = internal::smaller(
      internal::larger(kOnesExponent - (magnitude >> 23), kSmallestShift), internal::kLargestShift);
  const std::int32_t rounded = internal::round_shift(internal::significand_of(magnitude), shift);
  const std::int32_t limited = internal::smaller(rounded, negative ? 128 : 127);
  const std::int32_t value = negative ? -limited : limited;
  return static_cast<std::int8_t>(magnitude > internal::kInfinityBits ? 0 : value);
}

template <class T>
inline constexpr DType kDTypeOf = NumberFormat<T>::kDType;

// The largest finite value of a format, and for 8-bit formats the value that the largest finite
// magnitude of a (token, head) is stored as.
QUIRE_HOST_DEVICE constexpr float max_finite(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return NumberFormat<float>::kMaxFinite;
    case DType::kF16:
      return NumberFormat<Float16>::kMaxFinite;
    case DType::kBF16:
      return NumberFormat<BFloat16>::kMaxFinite;
    case DType::kF8E4M3:
      return NumberFormat<Float8E4M3>::kMaxFinite;
    case DType::kF8E5M2:
      return NumberFormat<Float8E5M2>::kMaxFinite;
    case DType::kI8:
      return NumberFormat<std::int8_t>::kMaxFinite;
  }
  __builtin_unreachable();
}

// stored = saturate(round_nearest_even(x / scale)); the value it stands for is stored * scale.
// REQUIRES: scale > 0 and finite. The 16-bit formats and f32 take scale 1.
template <class T>
QUIRE_HOST_DEVICE constexpr T quantize(float x, float scale) noexcept {
  return from_float<T>(number_formats_internal::ieee_divide(x, scale));
}

// |x|, or 0 where x is infinite or NaN: what an element adds to the amax of its (token, head).
QUIRE_HOST_DEVICE constexpr float finite_magnitude(float x) noexcept {
  namespace internal = number_formats_internal;
  const std::int32_t magnitude = internal::bits_of(x) & ~internal::kSignBit;
  return internal::float_of(magnitude < internal::kInfinityBits ? magnitude : 0);
}

// The scale of one (token, head) whose largest finite magnitude is `amax`: maps amax to the largest
// stored value. 1 below 2^-100, where scales and quotients would come near f32's subnormals, and
// for formats without scales.
QUIRE_HOST_DEVICE constexpr float token_head_scale(DType dtype, float amax) noexcept {
  const bool scaled = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kI8;
  if (!scaled || amax < 0x1p-100f) return 1.0f;
  return number_formats_internal::ieee_divide(amax, max_finite(dtype));
}

// Element `index` of an array whose format is known only at run time, without its scale.
// REQUIRES: dtype is an enumerator; base is aligned for its type.
QUIRE_HOST_DEVICE inline float load_float(DType dtype, const void* base,
                                          std::int64_t index) noexcept {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(base)[index];
    case DType::kF16:
      return to_float(static_cast<const Float16*>(base)[index]);
    case DType::kBF16:
      return to_float(static_cast<const BFloat16*>(base)[index]);
    case DType::kF8E4M3:
      return to_float(static_cast<const Float8E4M3*>(base)[index]);
    case DType::kF8E5M2:
      return to_float(static_cast<const Float8E5M2*>(base)[index]);
    case DType::kI8:
      return to_float(static_cast<const std::int8_t*>(base)[index]);
  }
  __builtin_unreachable();
}

// Stores x, which is already divided by its scale. REQUIRES: as load_float.
QUIRE_HOST_DEVICE inline void store_float(DType dtype, void* base, std::int64_t index,
                                          float x) noexcept {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(base)[index] = x;
      return;
    case DType::kF16:
      static_cast<Float16*>(base)[index] = from_float<Float16>(x);
      return;
    case DType::kBF16:
      static_cast<BFloat16*>(base)[index] = from_float<BFloat16>(x);
      return;
    case DType::kF8E4M3:
      static_cast<Float8E4M3*>(base)[index] = from_float<Float8E4M3>(x);
      return;
    case DType::kF8E5M2:
      static_cast<Float8E5M2*>(base)[index] = from_float<Float8E5M2>(x);
      return;
    case DType::kI8:
      static_cast<std::int8_t*>(base)[index] = from_float<std::int8_t>(x);
      return;
  }
  __builtin_unreachable();
}

}  // namespace quire
