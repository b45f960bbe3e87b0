// SPDX-License-Identifier: Apache-2.0
// Blocks from cache to cache: within one, across two, between device and pinned host memory, and
// between layouts. One launch for all layers and all copies.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "layout/kv_offset.h"

namespace quire::gpu {

inline constexpr int kCopyThreads = 256;
// Bytes that one thread block copies at a time.
inline constexpr int kCopyPiece = 16384;

// [0, bytes) from one place to another, by all threads of the block; four loads in flight.
QUIRE_DEVICE void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  const auto bits = reinterpret_cast<std::uint64_t>(to) | reinterpret_cast<std::uint64_t>(from) |
                    static_cast<std::uint64_t>(bytes);
  if (bits % sizeof(Sixteen) != 0) {
    for (std::int64_t i = thread_index(); i < bytes; i += kCopyThreads) {
      static_cast<std::uint8_t*>(to)[i] = static_cast<const std::uint8_t*>(from)[i];
    }
    return;
  }
  auto* target = static_cast<Sixteen*>(to);
  const auto* source = static_cast<const Sixteen*>(from);
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(Sixteen));
  constexpr int kInFlight = 4;
  for (std::int64_t i = thread_index(); i < count; i += kInFlight * kCopyThreads) {
    Sixteen piece[kInFlight];
    QUIRE_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k * kCopyThreads < count) piece[k] = source[i + k * kCopyThreads];
    }
    QUIRE_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k * kCopyThreads < count) target[i + k * kCopyThreads] = piece[k];
    }
  }
}

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

// Grid: (layer, copy, piece of the block) in one index; pieces > 1 only for whole records.
QUIRE_DEVICE void copy_blocks(const CopyArgs& args) {
  const std::int64_t pieces = args.whole_records ? args.num_pieces : 1;
  const std::int64_t total = static_cast<std::int64_t>(args.num_layers) * args.num_copies * pieces;
  for (std::int64_t i = block_index(); i < total; i += num_blocks()) {
    const std::int64_t unit = i / pieces;
    const std::int64_t piece = i - unit * pieces;
    const LayerPair& layer = args.layers[unit / args.num_copies];
    const BlockCopy copy = args.copies[unit % args.num_copies];
    const bool has_v = !layer.src.format.v_in_k;
    if (args.whole_records) {
      const int size = element_bytes(layer.src.format.dtype);
      const auto copy_tensor = [&](KvTensor tensor, std::int64_t bytes, const KvStrides& from,
                                   const KvStrides& to) {
        const std::int64_t begin = piece * kCopyPiece;
        if (begin >= bytes) return;
        const std::int64_t length = bytes - begin < kCopyPiece ? bytes - begin : kCopyPiece;
        copy_bytes(tensor_data(layer.dst, tensor) + copy.dst * to.block * size + begin,
                   tensor_data(layer.src, tensor) + copy.src * from.block * size + begin, length);
      };
      copy_tensor(KvTensor::kK, args.k_bytes, layer.src.k_strides, layer.dst.k_strides);
      if (has_v) copy_tensor(KvTensor::kV, args.v_bytes, layer.src.v_strides, layer.dst.v_strides);
    } else {
      convert_block(args, layer, KvTensor::kK, copy);
      if (has_v) convert_block(args, layer, KvTensor::kV, copy);
    }
    if (piece == 0 && layer.src.format.scales == ScaleGranularity::kPerTokenHead) {
      copy_scales(args, layer, layer.src.k_scales, layer.dst.k_scales, copy);
      if (has_v) copy_scales(args, layer, layer.src.v_scales, layer.dst.v_scales, copy);
    }
  }
}

}  // namespace quire::gpu
