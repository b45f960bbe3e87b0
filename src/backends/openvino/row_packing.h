// SPDX-License-Identifier: Apache-2.0
// Rows of strided tensors to and from the dense ones that the operation takes, rounded on the way.
// Host memory; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/tensor.h"

namespace quire::openvino {

// Whether rows lie without gaps, [rows, heads, dim].
bool is_dense(const TensorView& tensor) noexcept;

// packed [rows.size(), heads, dim] of `dtype` = the rows of the tensor, rounded to `through` first.
// REQUIRES: `through` is the dtype, or bf16 if that is f32.
void pack_rows(const TensorView& tensor, const std::vector<std::int64_t>& rows, DType dtype,
               DType through, void* packed) noexcept;

// The rows of the tensor = packed [rows.size(), heads, dim] of `dtype`, rounded to nearest even.
void unpack_rows(const void* packed, DType dtype, const std::vector<std::int64_t>& rows,
                 const MutableTensorView& tensor) noexcept;

}  // namespace quire::openvino
