// SPDX-License-Identifier: Apache-2.0
// The vectors of every level against plain arithmetic and number_formats.h (vec_check.inl).
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "backends/cpu/exp2_coefficients.h"
#include "backends/cpu/target_region.h"
#include "base/cpu_features.h"
#include "base/number_formats.h"
#include "conformance/random.h"

namespace quire::cpu {
namespace {

struct Findings {
  int num_checked = 0;
  int num_wrong = 0;
  std::string first;
};
Findings findings;
conformance::Random random_numbers(3);

// Plain functions: what a target region calls must not be compiled with its instructions.
[[gnu::noinline]] void expect(bool ok, const char* what, int index) noexcept {
  ++findings.num_checked;
  if (ok) return;
  if (findings.num_wrong++ == 0) findings.first = std::string(what) + " " + std::to_string(index);
}

// Of all sizes, with zeros, infinities and NaN among them.
[[gnu::noinline]] float draw() noexcept {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (random_numbers.below(16)) {
    case 0:
      return 0.0F;
    case 1:
      return random_numbers.below(2) == 0 ? kInfinity : -kInfinity;
    case 2:
      return random_numbers.below(4) == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
    case 3:
      return random_numbers.normal() * 1e20F;
    case 4:
      return random_numbers.normal() * 1e-20F;
    default:
      return random_numbers.normal();
  }
}

// Equal, zeros of either sign and NaN of any kind included.
[[gnu::noinline]] bool same(float a, float b) noexcept {
  return a == b || (a != a && b != b);
}

template <class T>
T code_of(int index) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(index) * 0.37F - 700.0F;
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    return static_cast<std::int8_t>(index - 128);
  } else {
    return T{static_cast<decltype(T::bits)>(index)};
  }
}
template <class T>
float decoded(T code) noexcept {
  return to_float(code);
}
template <class T>
bool equal_codes(T got, float x) noexcept {
  return got.bits == from_float<T>(x).bits;
}
template float code_of<float>(int) noexcept;
template BFloat16 code_of<BFloat16>(int) noexcept;
template Float16 code_of<Float16>(int) noexcept;
template Float8E4M3 code_of<Float8E4M3>(int) noexcept;
template Float8E5M2 code_of<Float8E5M2>(int) noexcept;
template std::int8_t code_of<std::int8_t>(int) noexcept;
template float decoded<float>(float) noexcept;
template float decoded<BFloat16>(BFloat16) noexcept;
template float decoded<Float16>(Float16) noexcept;
template float decoded<Float8E4M3>(Float8E4M3) noexcept;
template float decoded<Float8E5M2>(Float8E5M2) noexcept;
template float decoded<std::int8_t>(std::int8_t) noexcept;
template bool equal_codes<BFloat16>(BFloat16, float) noexcept;
template bool equal_codes<Float16>(Float16, float) noexcept;

// The second of each uses the first.
// clang-format off
namespace scalar_vectors {
#include "backends/cpu/scalar/vec.inl"
#include "backends/cpu/vec_check.inl"
}
#if defined(__x86_64__)
QUIRE_TARGET_BEGIN("avx2,fma,f16c")
namespace avx2_vectors {
#include "backends/cpu/avx2/vec.inl"
#include "backends/cpu/vec_check.inl"
}
QUIRE_TARGET_END
QUIRE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
namespace avx512_vectors {
#include "backends/cpu/avx512/vec.inl"
#include "backends/cpu/vec_check.inl"
}
QUIRE_TARGET_END
#endif
// clang-format on

void expect_none_wrong(void (*check)() noexcept) {
  findings = {};
  check();
  EXPECT_GT(findings.num_checked, 500000);
  EXPECT_EQ(findings.num_wrong, 0) << "first: " << findings.first;
}

TEST(Vectors, Scalar) {
  expect_none_wrong(scalar_vectors::check_all);
}

#if defined(__x86_64__)
TEST(Vectors, Avx2) {
  const CpuFeatures features = detect_cpu_features();
  if (!features.avx2 || !features.f16c) GTEST_SKIP() << "no AVX2 and F16C on this machine";
  expect_none_wrong(avx2_vectors::check_all);
}

TEST(Vectors, Avx512) {
  if (!detect_cpu_features().avx512) GTEST_SKIP() << "no AVX-512 on this machine";
  expect_none_wrong(avx512_vectors::check_all);
}
#endif

}  // namespace
}  // namespace quire::cpu
