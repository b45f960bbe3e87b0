// SPDX-License-Identifier: Apache-2.0
#include "gpu/whole_inverse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "base/number_formats.h"

namespace quire::gpu {
namespace {

float fused(float a, float b, float c) {
  return std::fma(a, b, c);
}

// All numbers of a row whose largest is significand `largest` of 2^bits, by an inverse that is off
// by `units` in the last place: those that round to 0 whatever is done are left out.
void expect_quotients(int bits, int largest, int units) {
  const auto amax = static_cast<float>(largest);
  const float scale = token_head_scale(DType::kI8, amax);
  float inverse = 1.0F / scale;
  if (units != 0) inverse = std::nextafter(inverse, units > 0 ? 2.0F : 0.0F);
  const float factor = whole_inverse(scale, inverse, amax, fused);
  if (factor == 0.0F) {
    EXPECT_EQ(largest % 127, 0) << largest;
    return;
  }
  const int least = 1 << (bits - 1);
  for (float unit = 1.0F; unit > 0x1p-10F; unit /= 2) {
    for (int significand = least; significand < 2 * least; ++significand) {
      const float x = unit * static_cast<float>(significand);
      if (x > amax) continue;
      ASSERT_EQ(std::nearbyint(x * factor), std::nearbyint(x / scale)) << x << " of " << amax;
      ASSERT_EQ(std::nearbyint(-x * factor), std::nearbyint(-x / scale)) << x << " of " << amax;
    }
  }
}

TEST(WholeInverse, GivesTheQuotientsOfEveryRow) {
  for (const int bits : {8, 11}) {  // of bf16 and f16
    for (int largest = 1 << (bits - 1); largest < 1 << bits; ++largest) {
      for (const int units : {-1, 0, 1}) {
        ASSERT_NO_FATAL_FAILURE(expect_quotients(bits, largest, units));
      }
    }
  }
}

// The powers of two of a row's numbers change nothing but where f32 ends.
TEST(WholeInverse, IsTheSameForEveryPowerOfTwo) {
  for (int power = -60; power <= 60; ++power) {
    const float amax = std::ldexp(201.0F, power);
    const float scale = token_head_scale(DType::kI8, amax);
    EXPECT_EQ(std::ldexp(whole_inverse(scale, 1.0F / scale, amax, fused), power),
              whole_inverse(token_head_scale(DType::kI8, 201.0F),
                            1.0F / token_head_scale(DType::kI8, 201.0F), 201.0F, fused))
        << power;
  }
}

// Without the step to one side, halves of the largest would be wrong.
TEST(WholeInverse, TheInverseAloneWouldNotDo) {
  int num_wrong = 0;
  for (int largest = 128; largest < 256; ++largest) {
    const auto amax = static_cast<float>(largest);
    const float scale = token_head_scale(DType::kI8, amax);
    for (const float side : {0.0F, 2.0F}) {
      const float inverse = std::nextafter(1.0F / scale, side);
      const float half = amax / 2;
      num_wrong += std::nearbyint(half * inverse) != std::nearbyint(half / scale) ? 1 : 0;
    }
  }
  EXPECT_GT(num_wrong, 0);
}

}  // namespace
}  // namespace quire::gpu
