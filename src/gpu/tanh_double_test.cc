// SPDX-License-Identifier: Apache-2.0
#include "gpu/tanh_double.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::gpu {
namespace {

TEST(TanhDouble, IsThatOfTheLibrary) {
  double largest = 0.0;
  const auto compare = [&largest](double x) {
    const double expected = std::tanh(x);
    const double error = std::abs(tanh_double(x) - expected) / std::abs(expected);
    largest = std::max(largest, error);
    EXPECT_EQ(tanh_double(-x), -tanh_double(x)) << x;
  };
  for (int i = 1; i <= 200000; ++i) compare(i * 1.2e-4);  // to 24, past where it is 1
  for (double x = 1e-4; x > 1e-300; x *= 0.71) compare(x);
  EXPECT_LT(largest, 4 * std::numeric_limits<double>::epsilon());
}

TEST(TanhDouble, Borders) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(tanh_double(0.0), 0.0);
  EXPECT_TRUE(std::signbit(tanh_double(-0.0)));
  EXPECT_EQ(tanh_double(kInfinity), 1.0);
  EXPECT_EQ(tanh_double(-kInfinity), -1.0);
  EXPECT_EQ(tanh_double(1e300), 1.0);
  EXPECT_TRUE(std::isnan(tanh_double(std::numeric_limits<double>::quiet_NaN())));
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(tanh_double(kTiny), kTiny);
}

}  // namespace
}  // namespace quire::gpu
