// SPDX-License-Identifier: Apache-2.0
// Copies of numbers as NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

namespace quire::python {

template <class Range>
nanobind::object to_numpy(const Range& values) {
  using T = std::remove_cv_t<std::remove_reference_t<decltype(*values.begin())>>;
  auto owned = std::make_unique<std::vector<T>>(values.begin(), values.end());
  T* data = owned->data();
  const std::size_t size = owned->size();
  const nanobind::capsule owner(
      owned.release(), [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
  return nanobind::cast(
      nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(data, {size}, owner));
}

}  // namespace quire::python
