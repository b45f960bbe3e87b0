// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/tensors.h"

#include <vector>

namespace quire::torch_sdpa {
namespace {

at::Tensor blob(const void* data, at::IntArrayRef sizes, at::IntArrayRef strides,
                at::ScalarType type, Device device) {
  const at::Device where = torch_device(device);
  return at::for_blob(const_cast<void*>(data), sizes)
      .strides(strides)
      .options(at::TensorOptions().dtype(type).device(where))
      .target_device(where)
      .make_tensor();
}

template <class View>
at::Tensor view_any(const View& view) {
  const auto rank = static_cast<std::size_t>(view.rank);
  return blob(view.data, {view.shape.data(), rank}, {view.strides.data(), rank},
              scalar_type_of(view.dtype), view.device);
}

const KvStrides& strides_of(const KvCacheView& cache, KvTensor tensor) {
  return tensor == KvTensor::kK || cache.format.v_in_k ? cache.k_strides : cache.v_strides;
}

at::ScalarType type_of_bytes(std::int64_t bytes) {
  switch (bytes) {
    case 16:
      return at::kComplexDouble;
    case 8:
      return at::kLong;
    case 4:
      return at::kInt;
    case 2:
      return at::kShort;
    default:
      return at::kByte;
  }
}

// In elements of `unit` bytes; the cache has elements of `size` bytes.
at::Tensor view_units(const KvCacheView& cache, KvTensor tensor, at::ScalarType type,
                      std::int64_t unit) {
  const std::int64_t size = dtype_bytes(cache.format.dtype);
  const KvStrides& strides = strides_of(cache, tensor);
  const std::int64_t dims = tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
  const auto units = [&](std::int64_t elements) { return elements * size / unit; };
  return blob(tensor == KvTensor::kK ? cache.k : cache.v,
              {cache.num_blocks, cache.format.block_size, cache.num_kv_heads, units(dims)},
              {units(strides.block), units(strides.token), units(strides.head), 1}, type,
              cache.device);
}

}  // namespace

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kF8E5M2:
      return at::kFloat8_e5m2;
    case DType::kI8:
      return at::kChar;
  }
  return at::kFloat;
}

at::Device torch_device(Device device) {
  if (device.is_host()) return {at::kCPU};
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

// The number of a stream that torch did not make is its handle, and the default one's is 0.
DeviceScope::DeviceScope(at::Device device, Stream stream) {
  if (device.is_cpu()) return;
  guard_.emplace(
      c10::Stream(c10::Stream::UNSAFE, device,
                  static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream.handle))));
}

at::Tensor view_memory(void* data, at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::for_blob(data, sizes)
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor view_tensor(const TensorView& view) {
  return view_any(view);
}

at::Tensor view_mutable(const MutableTensorView& view) {
  return view_any(view);
}

WideView view_wide(const KvCacheView& cache, KvTensor tensor) {
  const std::int64_t size = dtype_bytes(cache.format.dtype);
  const KvStrides& strides = strides_of(cache, tensor);
  const std::int64_t dims = tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
  const auto address = static_cast<std::int64_t>(
      reinterpret_cast<std::uintptr_t>(tensor == KvTensor::kK ? cache.k : cache.v) % 16);
  std::int64_t unit = 16;
  while (unit > size) {
    const bool fits = address % unit == 0 && dims * size % unit == 0 &&
                      strides.block * size % unit == 0 && strides.token * size % unit == 0 &&
                      strides.head * size % unit == 0;
    if (fits) break;
    unit /= 2;
  }
  return {.tensor = view_units(cache, tensor, type_of_bytes(unit), unit), .bytes = unit};
}

at::Tensor view_cache(const KvCacheView& cache, KvTensor tensor) {
  return view_units(cache, tensor, scalar_type_of(cache.format.dtype),
                    dtype_bytes(cache.format.dtype));
}

at::Tensor view_scales(const KvCacheView& cache, KvTensor tensor) {
  const KvScales& scales =
      tensor == KvTensor::kK || cache.format.v_in_k ? cache.k_scales : cache.v_scales;
  return blob(scales.data, {cache.num_blocks, cache.format.block_size, cache.num_kv_heads, 1},
              {scales.strides.block, scales.strides.token, scales.strides.head, 1}, at::kFloat,
              cache.device);
}

}  // namespace quire::torch_sdpa
