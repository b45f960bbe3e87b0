// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows and a kernel does not: a multiplication and a shift,
// where the device would take a subroutine.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace quire::gpu {

struct Divider {
  std::uint32_t multiplier = 0;
  std::int32_t shift = 0;
};

// REQUIRES: 1 <= divisor < 2^31.
QUIRE_HOST_DEVICE constexpr Divider make_divider(std::int32_t divisor) noexcept {
  std::int32_t bits = 0;  // the least with divisor <= 2^bits
  while ((std::int64_t{1} << bits) < divisor) ++bits;
  // More than 2^(31 + bits) / divisor by at most 1: for n < 2^31 the product is too large by less
  // than 2^(31 + bits) / divisor, so never by enough to reach the next quotient.
  const std::uint64_t one = std::uint64_t{1} << (31 + bits);
  return {static_cast<std::uint32_t>(one / static_cast<std::uint64_t>(divisor) + 1), 31 + bits};
}

// n / divisor. REQUIRES: 0 <= n < 2^31.
QUIRE_HOST_DEVICE constexpr std::int32_t divide(std::int32_t n, const Divider& by) noexcept {
  const std::uint64_t product =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * by.multiplier;
  return static_cast<std::int32_t>(product >> by.shift);
}

}  // namespace quire::gpu
