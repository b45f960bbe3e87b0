// SPDX-License-Identifier: Apache-2.0
// Views over memory that somebody else owns: arrays of metadata and strided tensors.
//
// A view never allocates, frees or copies. Sizes and strides are 64-bit and count elements.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "quire/device.h"
#include "quire/dtype.h"
#include "quire/error.h"

namespace quire {

// A contiguous read-only array in host or device memory.
template <class T>
struct ArrayView {
  const T* data = nullptr;  // [size]
  std::int64_t size = 0;
  Device device;

  ArrayView() = default;
  ArrayView(const T* data_, std::int64_t size_, Device device_ = {})
      : data(data_), size(size_), device(device_) {}
  ArrayView(const std::vector<T>& host)  // NOLINT(google-explicit-constructor): a view of it
      : data(host.data()), size(static_cast<std::int64_t>(host.size())) {}

  bool empty() const noexcept { return size == 0; }
  // REQUIRES: host memory.
  const T& operator[](std::int64_t i) const noexcept { return data[i]; }
  const T* begin() const noexcept { return data; }
  const T* end() const noexcept { return data + size; }
  ArrayView subview(std::int64_t first, std::int64_t count) const noexcept {
    return ArrayView(data + first, count, device);
  }
};

inline constexpr int kMaxRank = 5;

// A strided tensor. `Pointer` is `const void*` for what is read and `void*` for what is written.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};    // [rank]
  std::array<std::int64_t, kMaxRank> strides{};  // [rank], in elements
  Device device;

  BasicTensorView() = default;
  // A dense row-major tensor. Throws Error(kInvalidArgument) for an extent below 0 and for strides
  // beyond 64 bits.
  BasicTensorView(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                  Device device_ = {})
      : data(data_), dtype(dtype_), rank(static_cast<int>(shape_.size())), device(device_) {
    if (rank > kMaxRank) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a tensor has at most 5 axes, not " + std::to_string(rank));
    }
    int i = 0;
    for (const std::int64_t extent : shape_) shape[static_cast<std::size_t>(i++)] = extent;
    std::int64_t stride = 1;
    for (i = rank - 1; i >= 0; --i) {
      const std::int64_t extent = shape[static_cast<std::size_t>(i)];
      strides[static_cast<std::size_t>(i)] = stride;
      if (extent < 0 ||
          (extent > 0 && stride > std::numeric_limits<std::int64_t>::max() / extent)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "axis " + std::to_string(i) + " of a tensor has an extent " +
                        (extent < 0 ? "below 0: " : "whose elements 64 bits cannot count: ") +
                        std::to_string(extent));
      }
      stride *= extent;
    }
  }

  // What is written may also be read.
  template <class Other>
  requires(std::is_same_v<Pointer, const void*>&& std::is_same_v<Other, void*>)
      BasicTensorView(const BasicTensorView<Other>& written)  // NOLINT(google-explicit-constructor)
      : data(written.data),
        dtype(written.dtype),
        rank(written.rank),
        shape(written.shape),
        strides(written.strides),
        device(written.device) {}

  bool present() const noexcept { return rank != 0; }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

}  // namespace quire
