// SPDX-License-Identifier: Apache-2.0
// Compares Float16 and BFloat16 with the compiler's own _Float16 and __bf16. A program of its own,
// because only newer Clang converts both on a baseline x86-64 (the build uses Clang 19 and
// compiler-rt where they exist); the return value is 1 when anything differs.
#include <cstdint>
#include <cstdio>

#include "base/number_formats.h"

namespace {

using quire::BFloat16;
using quire::Float16;

// Odd, so that the low bits take every pattern; 2^32 / 257 is about 2^24 floats.
constexpr std::uint64_t kStride = 257;

struct Tally {
  long passed = 0;
  long failed = 0;

  void check(bool equal, const char* what, std::uint32_t input) {
    ++(equal ? passed : failed);
    if (!equal && failed <= 10) std::printf("%s differs at 0x%x\n", what, input);
  }
};

std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
bool is_nan(float x) {
  return x != x;
}

// Equal bits, or both NaN: the payloads are the library's choice.
template <class T>
bool same_code(T ours, std::uint16_t theirs) {
  return ours.bits == theirs || (is_nan(to_float(ours)) && is_nan(to_float(T{theirs})));
}
bool same_float(float ours, float theirs) {
  return bits_of(ours) == bits_of(theirs) || (is_nan(ours) && is_nan(theirs));
}

template <class T, class Native>
void compare_codes(Tally& tally, const char* name) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const auto theirs = static_cast<float>(__builtin_bit_cast(Native, bits));
    tally.check(same_float(to_float(T{bits}), theirs), name, code);
  }
}

template <class T, class Native>
void compare_floats(Tally& tally, const char* name) {
  for (std::uint64_t step = 0; step < (std::uint64_t{1} << 32); step += kStride) {
    const auto bits = static_cast<std::uint32_t>(step);
    const auto x = __builtin_bit_cast(float, bits);
    const auto theirs = __builtin_bit_cast(std::uint16_t, static_cast<Native>(x));
    tally.check(same_code(quire::from_float<T>(x), theirs), name, bits);
  }
}

}  // namespace

int main() {
  Tally tally;
  compare_codes<Float16, _Float16>(tally, "Float16 to f32");
  compare_codes<BFloat16, __bf16>(tally, "BFloat16 to f32");
  compare_floats<Float16, _Float16>(tally, "f32 to Float16");
  compare_floats<BFloat16, __bf16>(tally, "f32 to BFloat16");
  std::printf("number_formats_clang_test: %ld passed, %ld failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}
