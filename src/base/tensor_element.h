// SPDX-License-Identifier: Apache-2.0
// One element of a strided tensor in host memory, whatever its format: for code that is to be read
// and checked rather than to be fast. No checks; the caller knows rank and bounds.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/number_formats.h"
#include "quire/tensor.h"

namespace quire {

// REQUIRES: as many indices as the tensor has axes.
template <class Pointer, class... Index>
std::int64_t element_index(const BasicTensorView<Pointer>& tensor, Index... index) noexcept {
  const std::array<std::int64_t, sizeof...(index)> indices{index...};
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    offset += indices[axis] * tensor.strides[axis];
  }
  return offset;
}

template <class... Index>
float load_element(const TensorView& tensor, Index... index) noexcept {
  return load_float(tensor.dtype, tensor.data, element_index(tensor, index...));
}

// To f32 such that rounding the result again, to a format of at most 22 bits of mantissa, gives
// what one rounding of x gives: of the two neighbours of an inexact x the one with odd bits.
inline float round_to_odd(double x) noexcept {
  const float nearest = static_cast<float>(x);
  const bool is_odd = (std::bit_cast<std::uint32_t>(nearest) & 1) != 0;
  if (nearest == x || is_odd) return nearest;
  return std::nextafter(nearest, x < nearest ? -HUGE_VALF : HUGE_VALF);
}

// Rounds once, to nearest even.
template <class... Index>
void store_element(const MutableTensorView& tensor, double x, Index... index) noexcept {
  const float rounded = tensor.dtype == DType::kF32 ? static_cast<float>(x) : round_to_odd(x);
  store_float(tensor.dtype, tensor.data, element_index(tensor, index...), rounded);
}

}  // namespace quire
