// SPDX-License-Identifier: Apache-2.0
// Blocks, or some of their tokens, from cache to cache element by element: between layouts, and
// where copy_records.h cannot take them as they are. One launch for all layers and all copies.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/transfer_args.h"
#include "layout/kv_offset.h"

namespace quire::gpu {

QUIRE_DEVICE int element_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 1;
}

QUIRE_DEVICE unsigned char* tensor_data(const KvCacheView& cache, KvTensor tensor) {
  return static_cast<unsigned char*>(tensor == KvTensor::kK ? cache.k : cache.v);
}

// Element by element, between any two layouts: one tensor of one block.
QUIRE_DEVICE void convert_block(const CopyArgs& args, const LayerPair& layer, KvTensor tensor,
                                const BlockCopy& copy) {
  const int dims = tensor == KvTensor::kK ? layer.src.head_dim : layer.src.value_dim;
  const int size = element_bytes(layer.src.format.dtype);
  const std::int64_t count =
      static_cast<std::int64_t>(layer.src.num_kv_heads) * args.num_tokens * dims;
  const unsigned char* from = tensor_data(layer.src, tensor);
  unsigned char* to = tensor_data(layer.dst, tensor);
  for (std::int64_t i = thread_index(); i < count; i += kCopyThreads) {
    const std::int64_t row = i / dims;
    const std::int64_t dim = i - row * dims;
    const std::int64_t head = row / args.num_tokens;
    const std::int64_t token = args.first_token + row - head * args.num_tokens;
    const std::int64_t source =
        element_offset(layer.src, tensor, copy.src, head, token, dim) * size;
    const std::int64_t target =
        element_offset(layer.dst, tensor, copy.dst, head, token, dim) * size;
    for (int b = 0; b < size; ++b) to[target + b] = from[source + b];
  }
}

QUIRE_DEVICE void copy_scales(const CopyArgs& args, const LayerPair& layer, const KvScales& from,
                              const KvScales& to, const BlockCopy& copy) {
  const int count = layer.src.num_kv_heads * args.num_tokens;
  for (int i = thread_index(); i < count; i += kCopyThreads) {
    const int head = i / args.num_tokens;
    const int token = args.first_token + i - head * args.num_tokens;
    to.data[scale_offset(to, copy.dst, head, token)] =
        from.data[scale_offset(from, copy.src, head, token)];
  }
}

// Between any two layouts. Grid: (layer, copy) in one index.
QUIRE_DEVICE void copy_blocks(const CopyArgs& args) {
  const std::int64_t total = static_cast<std::int64_t>(args.num_layers) * args.num_copies;
  for (std::int64_t i = block_index(); i < total; i += num_blocks()) {
    const LayerPair& layer = args.layers[i / args.num_copies];
    const BlockCopy copy = args.copies[i % args.num_copies];
    const bool has_v = !layer.src.format.v_in_k;
    convert_block(args, layer, KvTensor::kK, copy);
    if (has_v) convert_block(args, layer, KvTensor::kV, copy);
    if (layer.src.format.scales == ScaleGranularity::kPerTokenHead) {
      copy_scales(args, layer, layer.src.k_scales, layer.dst.k_scales, copy);
      if (has_v) copy_scales(args, layer, layer.src.v_scales, layer.dst.v_scales, copy);
    }
  }
}

}  // namespace quire::gpu
