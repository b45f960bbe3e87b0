// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine and standard library.
#pragma once

#include <cstdint>

namespace quire::conformance {

// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // In [0, bound). REQUIRES: bound > 0. The bias of the modulus does not matter here.
  std::int64_t below(std::int64_t bound) noexcept {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

  // In [0, 1).
  float uniform() noexcept { return static_cast<float>(next() >> 40) * 0x1p-24F; }

  // Mean 0, variance 1, within +-3.5: the sum of four uniform numbers, exact in f32.
  float normal() noexcept {
    const std::uint64_t bits = next();
    const auto part = [bits](int shift) { return static_cast<int>((bits >> shift) & 0xffff); };
    const int sum = part(0) + part(16) + part(32) + part(48) - 2 * 0xffff;
    return static_cast<float>(sum) * (1.7320508F / 65536.0F);
  }

 private:
  std::uint64_t state_;
};

}  // namespace quire::conformance
