// SPDX-License-Identifier: Apache-2.0
// tanh in f64 for devices whose compiler comes without a library of functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace quire::gpu {

// e^x - 1 for x in [0, 64], within two units in the last place.
QUIRE_HOST_DEVICE constexpr double exp_minus_one(double x) {
  constexpr double kLog2E = 1.44269504088896340736;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // its products with small integers are exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const auto power = static_cast<std::int64_t>(x * kLog2E + 0.5);
  const double rest =
      (x - static_cast<double>(power) * kLn2High) - static_cast<double>(power) * kLn2Low;
  // The sum of rest^n / n!, without its first term.
  constexpr int kTerms = 15;
  double sum = 1.0;
  for (int n = kTerms; n > 1; --n) sum = 1.0 + sum * rest / n;
  const double unit = __builtin_bit_cast(double, (power + 1023) << 52);
  return unit * (sum * rest) + (unit - 1.0);
}

QUIRE_HOST_DEVICE constexpr double tanh_double(double x) {
  const double size = __builtin_fabs(x);
  if (size != size) return x;  // NaN
  const double e = exp_minus_one(size < 20.0 ? 2.0 * size : 40.0);
  return __builtin_copysign(e / (e + 2.0), x);
}

}  // namespace quire::gpu
