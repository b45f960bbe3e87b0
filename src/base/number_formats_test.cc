// SPDX-License-Identifier: Apache-2.0
// Every stored code and every rounding border of the number formats, against definitions in double
// that share no code with number_formats.h, and against the processor's own conversions.
#include "base/number_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <ios>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>
#endif

namespace quire {
namespace {

// Conversions are usable in constant expressions.
static_assert(to_float(Float16{0x3c00}) == 1.0f && to_float(Float16{0x0001}) == 0x1p-24f);
static_assert(to_float(BFloat16{0xc000}) == -2.0f);
static_assert(to_float(Float8E4M3{0x7e}) == 448.0f && to_float(Float8E5M2{0x7b}) == 57344.0f);
static_assert(from_float<Float16>(65520.0f).bits == 0x7c00);
static_assert(from_float<BFloat16>(1.0f).bits == 0x3f80);
static_assert(from_float<Float8E4M3>(464.0f).bits == 0x7e);
static_assert(from_float<Float8E5M2>(-61440.0f).bits == 0xfb);
static_assert(from_float<std::int8_t>(2.5f) == 2);
static_assert(quantize<std::int8_t>(6.0f, 2.0f) == 3);
static_assert(token_head_scale(DType::kF8E4M3, 896.0f) == 2.0f);
static_assert(finite_magnitude(-3.0f) == 3.0f);
static_assert(max_finite(kDTypeOf<Float16>) == 65504.0f);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kInfinityBits = 0x7f800000;
// About 2^21 of the 2^31 magnitudes. Odd, so that the low bits of f32 take every pattern.
constexpr std::uint32_t kStride = 1021;

float float_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

std::string hex(float x) {
  std::ostringstream out;
  out << std::hexfloat << x << " (0x" << std::hex << std::bit_cast<std::uint32_t>(x) << ")";
  return out.str();
}

// A format as its definition: sign, exponent and mantissa fields, and what lies above the finite.
template <class T>
struct Definition;

template <>
struct Definition<Float16> {
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static constexpr bool kHasInfinity = true, kSaturates = false;
};
template <>
struct Definition<BFloat16> {
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static constexpr bool kHasInfinity = true, kSaturates = false;
};
template <>
struct Definition<Float8E4M3> {
  static constexpr int kExponentBits = 4, kMantissaBits = 3;
  static constexpr bool kHasInfinity = false, kSaturates = true;
};
template <>
struct Definition<Float8E5M2> {
  static constexpr int kExponentBits = 5, kMantissaBits = 2;
  static constexpr bool kHasInfinity = true, kSaturates = true;
};

template <class T>
constexpr int kSignBit = 1 << (8 * sizeof(T) - 1);

// The value that sign-less bits would have if no code were special: (-1)^s * 2^(e-bias) * 1.m.
template <class T>
double plain_value(int code) {
  using D = Definition<T>;
  const int bias = (1 << (D::kExponentBits - 1)) - 1;
  const int exponent = code >> D::kMantissaBits;
  const int mantissa = code & ((1 << D::kMantissaBits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - D::kMantissaBits);
  return std::ldexp(mantissa + (1 << D::kMantissaBits), exponent - bias - D::kMantissaBits);
}

// The first code that is no finite value.
template <class T>
int finite_end() {
  using D = Definition<T>;
  if (!D::kHasInfinity) return kSignBit<T> - 1;
  return ((1 << D::kExponentBits) - 1) << D::kMantissaBits;
}

template <class T>
double defined_value(int code) {
  if (code < finite_end<T>()) return plain_value<T>(code);
  const bool infinite = Definition<T>::kHasInfinity && code == finite_end<T>();
  return infinite ? kInfinity : kNan;
}

// What a code becomes that rounding finds at finite_end: infinity, or back to the largest value.
template <class T>
int limit_code(int code) {
  const int largest = finite_end<T>() - (Definition<T>::kSaturates ? 1 : 0);
  return code < largest ? code : largest;
}

// The nearest code by search among all values, ties to even. The step after the largest finite
// value is taken as if the exponent range went on (IEEE 754, 4.3.1). REQUIRES: x >= 0, not NaN.
template <class T>
int nearest_code(double x) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (int code = 0; code <= finite_end<T>(); ++code) all.push_back(plain_value<T>(code));
    return all;
  }();
  const auto next = std::upper_bound(values.begin(), values.end(), x);
  const auto code = static_cast<int>(next - values.begin()) - 1;
  if (next == values.end()) return limit_code<T>(code);
  const double below = x - *(next - 1);  // exact in double, as x is an f32 between neighbours
  const double above = *next - x;        // likewise
  const bool up = above < below || (above == below && code % 2 == 1);
  return limit_code<T>(code + (up ? 1 : 0));
}

template <class T>
class FloatFormatTest : public testing::Test {};
using FloatFormats = testing::Types<Float16, BFloat16, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(FloatFormatTest, FloatFormats);

TYPED_TEST(FloatFormatTest, EveryCodeDecodesToItsDefinition) {
  using T = TypeParam;
  for (int code = 0; code < kSignBit<T>; ++code) {
    const double expected = defined_value<T>(code);
    const float positive = to_float(T{static_cast<decltype(T::bits)>(code)});
    const float negative = to_float(T{static_cast<decltype(T::bits)>(code | kSignBit<T>)});
    ASSERT_TRUE(std::signbit(negative) && !std::signbit(positive)) << code;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(positive) && std::isnan(negative)) << code;
    } else {
      ASSERT_EQ(positive, expected) << code;
      ASSERT_EQ(negative, -expected) << code;
    }
  }
}

TYPED_TEST(FloatFormatTest, EveryFiniteValueRoundTrips) {
  using T = TypeParam;
  for (int code = 0; code < finite_end<T>(); ++code) {
    for (const int signed_code : {code, code | kSignBit<T>}) {
      const T stored{static_cast<decltype(T::bits)>(signed_code)};
      ASSERT_EQ(from_float<T>(to_float(stored)).bits, signed_code);
    }
  }
}

TYPED_TEST(FloatFormatTest, MidpointsGoToEvenAndTheirNeighboursToTheNearerSide) {
  using T = TypeParam;
  for (int code = 0; code < finite_end<T>(); ++code) {
    const double middle = (plain_value<T>(code) + plain_value<T>(code + 1)) / 2;
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(tie, middle) << "f32 holds every midpoint";
    const int to_even = limit_code<T>(code + code % 2);
    ASSERT_EQ(from_float<T>(tie).bits, to_even) << hex(tie);
    ASSERT_EQ(from_float<T>(-tie).bits, to_even | kSignBit<T>) << hex(tie);
    ASSERT_EQ(from_float<T>(std::nextafter(tie, 0.0f)).bits, code) << hex(tie);
    ASSERT_EQ(from_float<T>(std::nextafter(tie, kInfinity)).bits, limit_code<T>(code + 1))
        << hex(tie);
  }
}

template <class T>
void expect_nearest(std::uint32_t magnitude) {
  const float x = float_of(magnitude);
  const int expected = nearest_code<T>(x);
  ASSERT_EQ(from_float<T>(x).bits, expected) << hex(x);
  ASSERT_EQ(from_float<T>(-x).bits, expected | kSignBit<T>) << hex(x);
}

TYPED_TEST(FloatFormatTest, FloatsGoToTheNearestCode) {
  for (std::uint32_t magnitude = 0; magnitude < kInfinityBits; magnitude += kStride) {
    ASSERT_NO_FATAL_FAILURE(expect_nearest<TypeParam>(magnitude));
  }
}

TYPED_TEST(FloatFormatTest, FloatsNextToPowersOfTwoGoToTheNearestCode) {
  for (std::uint32_t power = 1u << 23; power <= kInfinityBits; power += 1u << 23) {
    const std::uint32_t end = power == kInfinityBits ? power + 1 : power + 3;
    for (std::uint32_t magnitude = power - 3; magnitude < end; ++magnitude) {
      ASSERT_NO_FATAL_FAILURE(expect_nearest<TypeParam>(magnitude));
    }
  }
}

TYPED_TEST(FloatFormatTest, InfinitiesOverflowOrSaturate) {
  using T = TypeParam;
  const float largest = NumberFormat<T>::kMaxFinite;
  EXPECT_EQ(largest, plain_value<T>(finite_end<T>() - 1));
  const float beyond = Definition<T>::kSaturates ? largest : kInfinity;
  for (const float x : {kInfinity, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(to_float(from_float<T>(x)), beyond);
    EXPECT_EQ(to_float(from_float<T>(-x)), -beyond);
  }
}

TYPED_TEST(FloatFormatTest, NanStaysNanAndQuiet) {
  using T = TypeParam;
  const int quiet_bit = 1 << (Definition<T>::kMantissaBits - 1);
  for (std::uint32_t mantissa = 1; mantissa < (1u << 23); mantissa += kStride) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const T stored = from_float<T>(float_of(sign | kInfinityBits | mantissa));
      ASSERT_TRUE(std::isnan(to_float(stored))) << std::hex << mantissa;
      ASSERT_NE(stored.bits & quiet_bit, 0) << std::hex << mantissa;
      // Stored 8-bit bytes do not depend on the sign that a processor gives to a NaN.
      if (sizeof(T) == 1) {
        ASSERT_EQ(stored.bits, 0x7f);
      }
    }
  }
}

TEST(NumberFormatsTest, EightBitFloatsRoundOnceFromF32) {
  // Just above the midpoint of 1 and 1.125; rounding to f16 first would make it the midpoint.
  const float above_tie = 1.0625f + 0x1p-20f;
  EXPECT_EQ(to_float(from_float<Float16>(above_tie)), 1.0625f);
  EXPECT_EQ(to_float(from_float<Float8E4M3>(above_tie)), 1.125f);
  EXPECT_EQ(to_float(from_float<Float8E4M3>(1.0625f)), 1.0f);
  EXPECT_EQ(to_float(from_float<Float8E5M2>(1.125f + 0x1p-20f)), 1.25f);
}

TEST(NumberFormatsTest, SmallestValuesAndSignedZero) {
  EXPECT_EQ(from_float<Float16>(-0.0f).bits, 0x8000);
  EXPECT_EQ(from_float<Float8E4M3>(-0x1p-140f).bits, 0x80);
  EXPECT_EQ(to_float(Float8E4M3{0x01}), 0x1p-9f);
  EXPECT_EQ(to_float(Float8E5M2{0x01}), 0x1p-16f);
  EXPECT_EQ(to_float(BFloat16{0x0001}), 0x1p-133f);
  EXPECT_EQ(from_float<Float8E4M3>(0x1p-10f).bits, 0x00);     // a tie with zero, which is even
  EXPECT_EQ(from_float<Float8E4M3>(0x1.8p-9f).bits, 0x02);    // a tie of subnormals
  EXPECT_EQ(from_float<Float8E4M3>(0x1.ep-7f).bits, 0x08);    // subnormal rounds up to normal
  EXPECT_EQ(from_float<Float16>(0x1.ff8p-15f).bits, 0x03ff);  // the largest subnormal
  EXPECT_EQ(from_float<Float16>(0x1.ffcp-15f).bits, 0x0400);  // ties up to the smallest normal
}

TEST(NumberFormatsTest, Int8EveryValueAndHalfToEven) {
  for (int value = -128; value <= 127; ++value) {
    const auto x = static_cast<float>(value);
    ASSERT_EQ(to_float(static_cast<std::int8_t>(value)), x);
    ASSERT_EQ(from_float<std::int8_t>(x), value);
    const float tie = x + 0.5f;
    const int to_even = value + (value % 2 == 0 ? 0 : 1);
    ASSERT_EQ(from_float<std::int8_t>(tie), to_even > 127 ? 127 : to_even) << tie;
    ASSERT_EQ(from_float<std::int8_t>(std::nextafter(tie, -kInfinity)), value) << tie;
    ASSERT_EQ(from_float<std::int8_t>(std::nextafter(tie, kInfinity)),
              value + 1 > 127 ? 127 : value + 1)
        << tie;
  }
}

TEST(NumberFormatsTest, Int8SaturatesAndHasNoNan) {
  for (const float x : {127.5f, 128.0f, 128.5f, 1e10f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(from_float<std::int8_t>(x), 127) << x;
    EXPECT_EQ(from_float<std::int8_t>(-x - 1.0f), -128) << x;
  }
  EXPECT_EQ(from_float<std::int8_t>(-127.5f), -128);
  EXPECT_EQ(from_float<std::int8_t>(-128.5f), -128);
  EXPECT_EQ(from_float<std::int8_t>(kInfinity), 127);
  EXPECT_EQ(from_float<std::int8_t>(-kInfinity), -128);
  for (std::uint32_t mantissa = 1; mantissa < (1u << 23); mantissa += kStride) {
    ASSERT_EQ(from_float<std::int8_t>(float_of(kInfinityBits | mantissa)), 0);
    ASSERT_EQ(from_float<std::int8_t>(float_of(0x80000000u | kInfinityBits | mantissa)), 0);
  }
}

TEST(NumberFormatsTest, Int8AgreesWithRintOverAllFloats) {
  for (std::uint32_t bits = 0; bits <= kInfinityBits; bits += kStride) {
    for (const float x : {float_of(bits), -float_of(bits)}) {
      const double rounded = std::rint(static_cast<double>(x));  // to even, in the default mode
      const double expected = rounded < -128 ? -128 : rounded > 127 ? 127 : rounded;
      ASSERT_EQ(from_float<std::int8_t>(x), expected) << hex(x);
    }
  }
}

TEST(QuantizeTest, DividesOnceAndDoesNotMultiplyByTheReciprocal) {
  const float reciprocal = 1.0f / 7.0f;
  EXPECT_EQ(quantize<std::int8_t>(45.5f, 7.0f), 6);           // exactly 6.5, to even
  EXPECT_EQ(from_float<std::int8_t>(45.5f * reciprocal), 7);  // a little more than 6.5
}

TEST(QuantizeTest, InfinitiesSaturateAndNanStays) {
  EXPECT_EQ(to_float(quantize<Float8E4M3>(kInfinity, 0.5f)), 448.0f);
  EXPECT_EQ(to_float(quantize<Float8E5M2>(-kInfinity, 0.5f)), -57344.0f);
  EXPECT_EQ(quantize<std::int8_t>(-kInfinity, 0.5f), -128);
  EXPECT_EQ(quantize<Float8E5M2>(-kNan, 0.5f).bits, 0x7f);
  EXPECT_EQ(quantize<std::int8_t>(kNan, 0.5f), 0);
  // The quotient overflows f32; the value saturates all the same.
  EXPECT_EQ(to_float(quantize<Float8E4M3>(1e38f, 1e-10f)), 448.0f);
}

TEST(QuantizeTest, TokenHeadScaleMapsTheLargestMagnitudeToTheLargestCode) {
  EXPECT_EQ(token_head_scale(DType::kI8, 254.0f), 2.0f);
  EXPECT_EQ(token_head_scale(DType::kF8E4M3, 1.0f), 1.0f / 448.0f);
  EXPECT_EQ(token_head_scale(DType::kF8E5M2, 1.0f), 1.0f / 57344.0f);
  for (std::uint32_t bits = 0x0d800000 /* 2^-100 */; bits < kInfinityBits; bits += 64 * kStride) {
    const float amax = float_of(bits);
    ASSERT_EQ(quantize<std::int8_t>(amax, token_head_scale(DType::kI8, amax)), 127);
    ASSERT_EQ(quantize<std::int8_t>(-amax, token_head_scale(DType::kI8, amax)), -127);
    ASSERT_EQ(quantize<Float8E4M3>(amax, token_head_scale(DType::kF8E4M3, amax)).bits, 0x7e);
    ASSERT_EQ(quantize<Float8E5M2>(amax, token_head_scale(DType::kF8E5M2, amax)).bits, 0x7b);
  }
}

TEST(QuantizeTest, TokenHeadScaleIsOneForTinyMagnitudesAndUnscaledFormats) {
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_EQ(token_head_scale(dtype, 0.0f), 1.0f);
    EXPECT_EQ(token_head_scale(dtype, std::nextafter(0x1p-100f, 0.0f)), 1.0f);
    EXPECT_EQ(token_head_scale(dtype, 0x1p-100f), 0x1p-100f / max_finite(dtype));
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(token_head_scale(dtype, 100.0f), 1.0f);
  }
}

TEST(QuantizeTest, FiniteMagnitudeIgnoresInfinityAndNan) {
  EXPECT_EQ(finite_magnitude(-2.5f), 2.5f);
  EXPECT_FALSE(std::signbit(finite_magnitude(-0.0f)));
  EXPECT_EQ(finite_magnitude(-std::numeric_limits<float>::max()),
            std::numeric_limits<float>::max());
  for (const float x : {kInfinity, -kInfinity, kNan, -kNan}) EXPECT_EQ(finite_magnitude(x), 0.0f);
}

TEST(DispatchTest, RuntimeLoadsAndStoresAgreeWithTheTypes) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    dispatch_dtype(dtype, [&]<class T>() {
      EXPECT_EQ(kDTypeOf<T>, dtype);
      EXPECT_EQ(static_cast<std::int64_t>(sizeof(T)), dtype_bytes(dtype));
      EXPECT_EQ(NumberFormat<T>::kMaxFinite, max_finite(dtype));
      EXPECT_EQ(to_float(from_float<T>(max_finite(dtype))), max_finite(dtype));
      std::vector<T> stored(3);
      store_float(dtype, stored.data(), 1, -2.6f);
      EXPECT_EQ(to_float(stored[1]), to_float(from_float<T>(-2.6f)));
      EXPECT_EQ(load_float(dtype, stored.data(), 1), to_float(stored[1]));
      EXPECT_EQ(load_float(dtype, stored.data(), 0), 0.0f);
      EXPECT_EQ(load_float(dtype, stored.data(), 2), 0.0f);
    });
  }
}

TEST(DispatchTest, ListsCallTheMatchOrReportThatThereIsNone) {
  DType called = DType::kF32;
  const auto record = [&]<class T>() { called = kDTypeOf<T>; };
  EXPECT_TRUE((dispatch_dtype_among<Float16, BFloat16>(DType::kBF16, record)));
  EXPECT_EQ(called, DType::kBF16);
  EXPECT_FALSE((dispatch_dtype_among<Float16, BFloat16>(DType::kI8, record)));
  EXPECT_EQ(called, DType::kBF16);

  int value = 0;
  const auto keep = [&]<int kValue>() { value = kValue; };
  EXPECT_TRUE((dispatch<64, 128>(128, keep)));
  EXPECT_EQ(value, 128);
  EXPECT_FALSE((dispatch<64, 128>(96, keep)));
  EXPECT_EQ(value, 128);

  EXPECT_EQ(dispatch_dtype(DType::kF16, []<class T>() { return sizeof(T); }), 2u);
}

#if defined(__x86_64__)

using Floats8 = std::array<float, 8>;
using Codes8 = std::array<std::uint16_t, 8>;
using Floats16 = std::array<float, 16>;
using Codes16 = std::array<std::uint16_t, 16>;

__attribute__((target("avx,f16c"))) Codes8 f16c_encode(const Floats8& x) {
  Codes8 codes;
  const __m128i packed =
      _mm256_cvtps_ph(_mm256_loadu_ps(x.data()), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes.data()), packed);
  return codes;
}

__attribute__((target("avx,f16c"))) Floats8 f16c_decode(const Codes8& codes) {
  Floats8 x;
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes.data()));
  _mm256_storeu_ps(x.data(), _mm256_cvtph_ps(packed));
  return x;
}

__attribute__((target("avx512f,avx512bf16"))) Codes16 avx512_bf16_encode(const Floats16& x) {
  Codes16 codes;
  const auto packed = _mm512_cvtneps_pbh(_mm512_loadu_ps(x.data()));
  static_assert(sizeof(packed) == sizeof(codes));
  std::memcpy(codes.data(), &packed, sizeof(codes));
  return codes;
}

// Calls check(group) for groups of floats strided over all 2^32 bit patterns.
template <std::size_t kSize, class Check>
void for_all_floats(const Check& check) {
  std::array<float, kSize> group;
  std::size_t filled = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += kStride) {
    group[filled++] = float_of(static_cast<std::uint32_t>(bits));
    if (filled < kSize) continue;
    ASSERT_NO_FATAL_FAILURE(check(group));
    filled = 0;
  }
}

// __builtin_cpu_supports of Clang 14 does not know "f16c"; every processor with AVX2 has it.
bool has_f16c() {
  return __builtin_cpu_supports("avx2");
}

TEST(HardwareTest, Float16EncodesAsF16c) {
  if (!has_f16c()) GTEST_SKIP() << "this CPU has no AVX2, hence maybe no F16C";
  for_all_floats<8>([](const Floats8& x) {
    const Codes8 codes = f16c_encode(x);  // NaN included: sign and payload are kept the same way
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(from_float<Float16>(x[i]).bits, codes[i]) << hex(x[i]);
    }
  });
}

TEST(HardwareTest, Float16DecodesAsF16c) {
  if (!has_f16c()) GTEST_SKIP() << "this CPU has no AVX2, hence maybe no F16C";
  for (unsigned code = 0; code < 0x10000; code += 8) {
    Codes8 codes;
    for (unsigned i = 0; i < 8; ++i) codes[i] = static_cast<std::uint16_t>(code + i);
    const Floats8 expected = f16c_decode(codes);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float decoded = to_float(Float16{codes[i]});
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(decoded)) << codes[i];  // F16C makes signalling NaNs quiet
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded), std::bit_cast<std::uint32_t>(expected[i]));
      }
    }
  }
}

// The instruction takes subnormals as zeros, so those are left out.
TEST(HardwareTest, BFloat16EncodesAsAvx512Bf16) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  for_all_floats<16>([](const Floats16& x) {
    const Codes16 codes = avx512_bf16_encode(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::fpclassify(x[i]) == FP_SUBNORMAL) continue;
      ASSERT_EQ(from_float<BFloat16>(x[i]).bits, codes[i]) << hex(x[i]);
    }
  });
}

// All codes of T decoded, then those and their f32 neighbours encoded. Not inlined, so that no part
// of it moves across a change of the control register.
template <class T>
__attribute__((noinline)) std::vector<std::uint32_t> convert_all() {
  std::vector<std::uint32_t> results;
  for (int code = 0; code < 2 * kSignBit<T>; ++code) {
    const float x = to_float(T{static_cast<decltype(T::bits)>(code)});
    const auto bits = std::bit_cast<std::uint32_t>(x);
    results.push_back(bits);
    for (const std::uint32_t offset : {0x1u, 0x1000u, 0x8000u, 0x80000u, 0x100000u}) {
      results.push_back(from_float<T>(float_of(bits + offset)).bits);
    }
  }
  return results;
}

TYPED_TEST(FloatFormatTest, RoundingModeAndFlushingOfSubnormalsDoNotMatter) {
  const std::vector<std::uint32_t> expected = convert_all<TypeParam>();
  const unsigned saved = _mm_getcsr();
  for (const unsigned rounding : {_MM_ROUND_DOWN, _MM_ROUND_UP, _MM_ROUND_TOWARD_ZERO}) {
    const unsigned daz = 0x40;
    _mm_setcsr((saved & ~unsigned{_MM_ROUND_MASK}) | rounding | _MM_FLUSH_ZERO_ON | daz);
    const std::vector<std::uint32_t> results = convert_all<TypeParam>();
    _mm_setcsr(saved);
    ASSERT_TRUE(results == expected) << rounding;
  }
}

#endif  // __x86_64__

}  // namespace
}  // namespace quire
