// SPDX-License-Identifier: Apache-2.0
#include "gpu/divider.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace quire::gpu {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

// Around every multiple near both ends, and around powers of two.
void expect_divides(std::int32_t divisor) {
  const Divider by = make_divider(divisor);
  const auto expect_at = [&](std::int64_t n) {
    if (n < 0 || n > kLargest) return;
    const auto x = static_cast<std::int32_t>(n);
    ASSERT_EQ(divide(x, by), x / divisor) << x << " / " << divisor;
  };
  for (std::int64_t near = -1; near <= 1; ++near) {
    for (std::int64_t i = 0; i < 64; ++i) {
      expect_at(i * divisor + near);
      expect_at((kLargest / divisor - i) * divisor + near);
    }
    for (int bit = 0; bit < 31; ++bit) expect_at((std::int64_t{1} << bit) + near);
    expect_at(kLargest + near);
  }
}

TEST(Divider, DividesAsTheLanguageDoes) {
  for (std::int32_t divisor = 1; divisor < 3000; ++divisor) expect_divides(divisor);
  for (int bit = 1; bit < 31; ++bit) {
    for (std::int32_t near = -1; near <= 1; ++near) expect_divides((1 << bit) + near);
  }
  expect_divides(kLargest);
  expect_divides(kLargest - 1);
}

}  // namespace
}  // namespace quire::gpu
