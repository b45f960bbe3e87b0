// SPDX-License-Identifier: Apache-2.0
#include "conformance/tensor_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/number_formats.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

std::int64_t size_in_elements(const TensorImage::Shape& shape) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < shape.extents.size(); ++axis) {
    if (shape.extents[axis] == 0) return shape.lead;
    last += (shape.extents[axis] - 1) * shape.strides[axis];
  }
  return shape.lead + last + 1;
}

}  // namespace

TensorImage::TensorImage(DeviceMemory& memory, Shape shape)
    : shape_(std::move(shape)),
      device_(memory.device()),
      bytes_(at(size_in_elements(shape_) * dtype_bytes(shape_.dtype)), kPoison),
      buffer_(memory, static_cast<std::int64_t>(bytes_.size())) {}

TensorImage::Shape TensorImage::shape_of(TensorStyle style, DType dtype, std::int64_t rows,
                                         std::int64_t heads, std::int64_t dim) {
  Shape shape{.dtype = dtype, .extents = {rows, heads, dim}, .strides = {}, .lead = 0};
  switch (style) {
    case TensorStyle::kDense:
      shape.strides = {heads * dim, dim, 1};
      break;
    case TensorStyle::kFusedRows:
      shape.strides = {heads * dim + 2 * dim, dim, 1};
      shape.lead = dim;
      break;
    case TensorStyle::kHeadMajor:
      shape.strides = {dim + 8, rows * (dim + 8) + 16, 1};
      break;
    case TensorStyle::kOdd:
      shape.strides = {heads * (dim + 3) + 1, dim + 3, 1};
      shape.lead = 1;
      break;
  }
  return shape;
}

TensorImage::Shape TensorImage::lse_shape(TensorStyle style, std::int64_t rows,
                                          std::int64_t heads) {
  Shape shape{.dtype = DType::kF32, .extents = {rows, heads}, .strides = {heads, 1}, .lead = 0};
  if (style == TensorStyle::kHeadMajor) {
    shape.strides = {1, rows + 2};
  } else if (style != TensorStyle::kDense) {
    shape.strides = {heads + 3, 1};
    shape.lead = 1;
  }
  return shape;
}

std::int64_t TensorImage::offset(std::initializer_list<std::int64_t> index) const noexcept {
  std::int64_t result = shape_.lead;
  std::size_t axis = 0;
  for (const std::int64_t i : index) result += i * shape_.strides[axis++];
  return result;
}

void TensorImage::set(std::initializer_list<std::int64_t> index, float x) {
  store_float(shape_.dtype, bytes_.data(), offset(index), x);
}

void TensorImage::upload() {
  buffer_.upload(bytes_.data(), 0, std::ssize(bytes_));
}

MutableTensorView TensorImage::view() const {
  MutableTensorView view;
  view.data = static_cast<std::byte*>(buffer_.data()) + shape_.lead * dtype_bytes(shape_.dtype);
  view.dtype = shape_.dtype;
  view.rank = static_cast<int>(shape_.extents.size());
  std::copy(shape_.extents.begin(), shape_.extents.end(), view.shape.begin());
  std::copy(shape_.strides.begin(), shape_.strides.end(), view.strides.begin());
  view.device = device_;
  return view;
}

std::optional<std::string> TensorImage::changed(const char* name) const {
  if (!buffer_.guards_are_intact()) return concat(name, ": bytes next to it were written");
  if (auto difference = first_difference(bytes_, buffer_.download())) {
    return concat(name, ": ", *difference);
  }
  return std::nullopt;
}

std::optional<std::string> TensorImage::changed_outside(
    const char* name, const std::vector<std::uint8_t>& written) const {
  if (!buffer_.guards_are_intact()) return concat(name, ": bytes next to it were written");
  const std::vector<std::byte> got = buffer_.download();
  std::vector<std::byte> want = bytes_;
  const std::int64_t element_bytes = dtype_bytes(shape_.dtype);
  const bool has_dims = shape_.extents.size() == 3;
  const std::int64_t dims = has_dims ? shape_.extents[2] : 1;
  for (std::int64_t row = 0; row < shape_.extents[0]; ++row) {
    if (written[at(row)] == 0) continue;
    for (std::int64_t head = 0; head < shape_.extents[1]; ++head) {
      const std::int64_t first = offset({row, head}) * element_bytes;
      std::copy_n(got.begin() + first, dims * element_bytes, want.begin() + first);
    }
  }
  if (auto difference = first_difference(want, got)) {
    return concat(name, ", outside of what is to be written: ", *difference);
  }
  return std::nullopt;
}

TensorImage::Contents TensorImage::download() const {
  Contents contents;
  contents.image_ = this;
  contents.bytes_ = buffer_.download();
  return contents;
}

float TensorImage::Contents::operator()(std::initializer_list<std::int64_t> index) const {
  return load_float(image_->shape_.dtype, bytes_.data(), image_->offset(index));
}

std::uint32_t TensorImage::Contents::bits(std::initializer_list<std::int64_t> index) const {
  const std::int64_t element_bytes = dtype_bytes(image_->shape_.dtype);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes_.data() + image_->offset(index) * element_bytes, at(element_bytes));
  return bits;
}

}  // namespace quire::conformance
