// SPDX-License-Identifier: Apache-2.0
// Where an element of the cache lies: the only place that computes an offset. Host and device; no
// exceptions, no allocation; 64-bit throughout.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "quire/batch.h"
#include "quire/kv_cache.h"

namespace quire {

enum class KvTensor : std::uint8_t { kK, kV };

// Tiles of kPairTiled hold 16 tokens (K) or 16 dims (V): one row of an AMX tile of bf16 pairs.
inline constexpr int kPairTile = 16;

// Element (token, dim) inside one (block, head) of the pair-tiled layout.
//   K: [token / 16][dim / 2][token % 16][dim % 2]      V: [dim / 16][token / 2][dim % 16][token %
//   2]
QUIRE_HOST_DEVICE constexpr std::int64_t pair_tiled_k(std::int64_t dims, std::int64_t token,
                                                      std::int64_t dim) {
  return token / kPairTile * (dims * kPairTile) + dim / 2 * (2 * kPairTile) +
         token % kPairTile * 2 + dim % 2;
}
QUIRE_HOST_DEVICE constexpr std::int64_t pair_tiled_v(std::int64_t block_size, std::int64_t token,
                                                      std::int64_t dim) {
  return dim / kPairTile * (block_size * kPairTile) + token / 2 * (2 * kPairTile) +
         dim % kPairTile * 2 + token % 2;
}

// Offset of (block, head, token) by strides alone.
QUIRE_HOST_DEVICE constexpr std::int64_t strided_offset(const KvStrides& strides,
                                                        std::int64_t block, std::int64_t head,
                                                        std::int64_t token) {
  return block * strides.block + head * strides.head + token * strides.token;
}

// Element offset of (block, head, token, dim) of K or V. REQUIRES: the layout is not opaque.
QUIRE_HOST_DEVICE constexpr std::int64_t element_offset(const KvCacheView& cache, KvTensor tensor,
                                                        std::int64_t block, std::int64_t head,
                                                        std::int64_t token, std::int64_t dim) {
  const bool is_k = tensor == KvTensor::kK || cache.format.v_in_k;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  if (cache.format.layout == KvLayoutId::kPlain) {
    return strided_offset(strides, block, head, token) + dim;
  }
  return strided_offset(strides, block, head, 0) +
         (is_k ? pair_tiled_k(cache.head_dim, token, dim)
               : pair_tiled_v(cache.format.block_size, token, dim));
}

// Offset of the scale of (block, head, token).
QUIRE_HOST_DEVICE constexpr std::int64_t scale_offset(const KvScales& scales, std::int64_t block,
                                                      std::int64_t head, std::int64_t token) {
  return strided_offset(scales.strides, block, head, token);
}

// The blocks of sequence s, in the order of its keys. REQUIRES: the tables are not ragged.
QUIRE_HOST_DEVICE constexpr const std::int32_t* blocks_of(const BlockTables& tables,
                                                          std::int64_t s) {
  return tables.indices.data + (tables.kind == BlockTables::Kind::kPadded
                                    ? s * tables.row_stride
                                    : static_cast<std::int64_t>(tables.begins.data[s]));
}

// The slot of key j of sequence s: block * block_size + offset, or the row of a ragged source.
QUIRE_HOST_DEVICE constexpr std::int64_t key_slot(const BlockTables& tables,
                                                  std::int64_t block_size, std::int64_t s,
                                                  std::int64_t j) {
  if (tables.kind == BlockTables::Kind::kRagged) return tables.rows.data[s] + j;
  const std::int64_t block = blocks_of(tables, s)[j / block_size];
  return block * block_size + j % block_size;
}

}  // namespace quire
