// SPDX-License-Identifier: Apache-2.0
// Indices are 64-bit and signed everywhere in quire; standard containers want them unsigned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::conformance {

constexpr std::size_t at(std::int64_t i) noexcept {
  return static_cast<std::size_t>(i);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}

}  // namespace quire::conformance
