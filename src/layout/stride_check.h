// SPDX-License-Identifier: Apache-2.0
// Whether strides let two different indices meet, and how far they reach. Pure functions on the
// host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace quire {

struct StridedAxis {
  std::int64_t extent = 0;  // >= 0
  std::int64_t stride = 0;  // in elements
};

// Offsets stay below this in magnitude, so that they fit 64 bits in bytes of any dtype too.
inline constexpr std::int64_t kMaxElementOffset = std::numeric_limits<std::int64_t>::max() / 8;

// Whether every offset of the axes stays within +- kMaxElementOffset.
template <std::size_t kNumAxes>
[[nodiscard]] constexpr bool offsets_fit(const std::array<StridedAxis, kNumAxes>& axes) {
  std::int64_t reach = 0;
  for (const StridedAxis& axis : axes) {
    if (axis.extent <= 1) continue;
    if (axis.stride < -kMaxElementOffset || axis.stride > kMaxElementOffset) return false;
    const std::int64_t step = axis.stride < 0 ? -axis.stride : axis.stride;
    if (step != 0 && axis.extent - 1 > (kMaxElementOffset - reach) / step) return false;
    reach += (axis.extent - 1) * step;
  }
  return true;
}

// Whether no two different indices share an element: ordered by stride, each axis steps over all
// that the finer ones cover. Refuses the few interleavings without that order, never accepts an
// overlap. Also false if offsets_fit is.
template <std::size_t kNumAxes>
[[nodiscard]] constexpr bool strides_are_disjoint(std::array<StridedAxis, kNumAxes> axes) {
  if (!offsets_fit(axes)) return false;
  for (std::size_t i = 1; i < kNumAxes; ++i) {  // insertion sort: there are at most five
    for (std::size_t j = i; j > 0 && axes[j].stride < axes[j - 1].stride; --j) {
      std::swap(axes[j], axes[j - 1]);
    }
  }
  std::int64_t covered = 1;
  for (const StridedAxis& axis : axes) {
    if (axis.extent <= 1) continue;
    if (axis.stride < covered) return false;
    covered += (axis.extent - 1) * axis.stride;
  }
  return true;
}

}  // namespace quire
