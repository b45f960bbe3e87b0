// SPDX-License-Identifier: Apache-2.0
// Views of quire as tensors of torch: no copies. All of torch's headers that this adapter's device
// path needs come with this one; it is included by sources of this folder alone.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <optional>

#include "layout/kv_offset.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::torch_sdpa {

at::ScalarType scalar_type_of(DType dtype);

// Where quire's memory is for torch.
at::Device torch_device(Device device);

// Work of this thread goes to `stream` while it lives, without gradients.
class DeviceScope {
 public:
  DeviceScope(at::Device device, Stream stream);

 private:
  c10::InferenceMode no_gradients_;
  std::optional<c10::StreamGuard> guard_;
};

// Dense memory. Torch is told where it lies: it need not ask the driver.
at::Tensor view_memory(void* data, at::IntArrayRef sizes, at::ScalarType type, at::Device device);
at::Tensor view_tensor(const TensorView& view);
at::Tensor view_mutable(const MutableTensorView& view);
template <class T>
at::Tensor view_list(const T* data, std::int64_t size, at::ScalarType type, at::Device device) {
  return view_memory(const_cast<T*>(data), {size}, type, device);
}

// K or V as [num_blocks, block_size, num_kv_heads, dim] in elements of `bytes` bytes, which divide
// a row: as large as addresses and strides allow, because a gather costs by the element.
// REQUIRES: a plain layout.
struct WideView {
  at::Tensor tensor;
  std::int64_t bytes = 0;
};
WideView view_wide(const KvCacheView& cache, KvTensor tensor);
// The same in the cache's own elements.
at::Tensor view_cache(const KvCacheView& cache, KvTensor tensor);
// Scales as [num_blocks, block_size, num_kv_heads, 1], f32. REQUIRES: the cache has scales.
at::Tensor view_scales(const KvCacheView& cache, KvTensor tensor);

}  // namespace quire::torch_sdpa
