// SPDX-License-Identifier: Apache-2.0
// A strided tensor: its host bytes, poison between the elements, and the same in backend memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/case.h"
#include "conformance/device_buffer.h"
#include "quire/tensor.h"

namespace quire::conformance {

class TensorImage {
 public:
  // Rank and strides as given; room for `lead` elements before element 0.
  struct Shape {
    DType dtype = DType::kF32;
    std::vector<std::int64_t> extents;
    std::vector<std::int64_t> strides;
    std::int64_t lead = 0;
  };

  TensorImage(DeviceMemory& memory, Shape shape);

  // [rows, heads, dim], and [rows, heads] in the style.
  static Shape shape_of(TensorStyle style, DType dtype, std::int64_t rows, std::int64_t heads,
                        std::int64_t dim);
  static Shape lse_shape(TensorStyle style, std::int64_t rows, std::int64_t heads);

  void set(std::initializer_list<std::int64_t> index, float x);
  void upload();  // the host bytes, which the device must hold from now on

  MutableTensorView view() const;

  // After a call. An input must hold what it held; of an output, `written` says which rows of
  // axis 0 may differ.
  std::optional<std::string> changed(const char* name) const;
  std::optional<std::string> changed_outside(const char* name,
                                             const std::vector<std::uint8_t>& written) const;

  // What the device holds, by element.
  class Contents {
   public:
    float operator()(std::initializer_list<std::int64_t> index) const;
    // The bits of one element.
    std::uint32_t bits(std::initializer_list<std::int64_t> index) const;

   private:
    friend class TensorImage;
    const TensorImage* image_ = nullptr;
    std::vector<std::byte> bytes_;
  };
  Contents download() const;

 private:
  std::int64_t offset(std::initializer_list<std::int64_t> index) const noexcept;

  Shape shape_;
  Device device_;
  std::vector<std::byte> bytes_;
  DeviceBuffer buffer_;
};

}  // namespace quire::conformance
