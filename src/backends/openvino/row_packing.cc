// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/row_packing.h"

#include <algorithm>
#include <cstring>

#include "base/float_rows.h"

namespace quire::openvino {
namespace {

constexpr std::int64_t kTile = 64;  // numbers that are converted at once

// Calls f(element offset in the tensor, element offset in the packed rows) for every head of every
// row.
template <class View, class F>
void for_heads(const View& tensor, const std::vector<std::int64_t>& rows, F&& f) noexcept {
  std::int64_t packed = 0;
  for (const std::int64_t row : rows) {
    for (std::int64_t head = 0; head < tensor.shape[1]; ++head, packed += tensor.shape[2]) {
      f(row * tensor.strides[0] + head * tensor.strides[1], packed);
    }
  }
}

void copy_elements(const void* from, std::int64_t from_offset, void* to, std::int64_t to_offset,
                   std::int64_t count, std::int64_t element_bytes) noexcept {
  std::memcpy(static_cast<std::byte*>(to) + to_offset * element_bytes,
              static_cast<const std::byte*>(from) + from_offset * element_bytes,
              static_cast<std::size_t>(count * element_bytes));
}

void round_to_bf16(float* values, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) values[i] = to_float(from_float<BFloat16>(values[i]));
}

}  // namespace

bool is_dense(const TensorView& tensor) noexcept {
  return tensor.strides[2] == 1 && tensor.strides[1] == tensor.shape[2] &&
         tensor.strides[0] == tensor.shape[1] * tensor.shape[2];
}

void pack_rows(const TensorView& tensor, const std::vector<std::int64_t>& rows, DType dtype,
               DType through, void* packed) noexcept {
  const std::int64_t dim = tensor.shape[2];
  const bool same = tensor.dtype == dtype && through == dtype;
  for_heads(tensor, rows, [&](std::int64_t from, std::int64_t to) {
    if (same) return copy_elements(tensor.data, from, packed, to, dim, dtype_bytes(dtype));
    float values[kTile];
    for (std::int64_t d = 0; d < dim; d += kTile) {
      const std::int64_t count = std::min(kTile, dim - d);
      load_floats(tensor.dtype, tensor.data, from + d, count, values);
      if (through == DType::kBF16 && tensor.dtype != DType::kBF16) round_to_bf16(values, count);
      store_floats(dtype, packed, to + d, count, values);
    }
  });
}

void unpack_rows(const void* packed, DType dtype, const std::vector<std::int64_t>& rows,
                 const MutableTensorView& tensor) noexcept {
  const std::int64_t dim = tensor.shape[2];
  for_heads(tensor, rows, [&](std::int64_t to, std::int64_t from) {
    if (tensor.dtype == dtype) {
      return copy_elements(packed, from, tensor.data, to, dim, dtype_bytes(dtype));
    }
    float values[kTile];
    for (std::int64_t d = 0; d < dim; d += kTile) {
      const std::int64_t count = std::min(kTile, dim - d);
      load_floats(dtype, packed, from + d, count, values);
      store_floats(tensor.dtype, tensor.data, to + d, count, values);
    }
  });
}

}  // namespace quire::openvino
