// SPDX-License-Identifier: Apache-2.0
// A number that looks random from one that does not: the finalizer of SplitMix64, a bijection.
#pragma once

#include <cstdint>

namespace quire::replay {

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace quire::replay
