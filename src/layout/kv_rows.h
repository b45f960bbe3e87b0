// SPDX-License-Identifier: Apache-2.0
// One row of the cache: the elements of one token of one head of K or V, as f32. The plain way into
// and out of every layout, format and scale granularity, for the reference and for what need not be
// fast. Host memory; no exceptions, no allocation. Different rows may be used from different
// threads.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {

// How a row lies: dim d is element d / run * run_stride + d % run * stride after dim 0.
struct RowShape {
  std::int64_t run = 1;
  std::int64_t stride = 1;
  std::int64_t run_stride = 1;

  QUIRE_HOST_DEVICE constexpr std::int64_t offset(std::int64_t dim) const {
    return dim / run * run_stride + dim % run * stride;
  }
};

QUIRE_HOST_DEVICE constexpr std::int64_t row_dims(const KvCacheView& cache, KvTensor tensor) {
  return tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
}

// REQUIRES: the layout is not opaque.
QUIRE_HOST_DEVICE constexpr RowShape row_shape(const KvCacheView& cache, KvTensor tensor) {
  const std::int64_t dims = row_dims(cache, tensor);
  if (cache.format.layout == KvLayoutId::kPlain) return {dims, 1, dims};
  if (tensor == KvTensor::kK || cache.format.v_in_k) return {2, 1, 2 * kPairTile};
  return {kPairTile, 2, static_cast<std::int64_t>(cache.format.block_size) * kPairTile};
}

// out[d] = stored * scale, an f32 product. The block of a ragged source is its row, the token 0.
// REQUIRES: a cache in host memory, not opaque; out is [row_dims].
void load_row(const KvCacheView& cache, KvTensor tensor, std::int64_t block, std::int64_t head,
              std::int64_t token, float* out) noexcept;

// Stores row [row_dims], rounded once to the format of the cache. With scales per (token, head) it
// computes and stores the scale too; others are read. Touches no byte of another row.
// REQUIRES: as load_row; with v_in_k the tensor is K, which holds V.
void store_row(const KvCacheView& cache, KvTensor tensor, std::int64_t block, std::int64_t head,
               std::int64_t token, const float* row) noexcept;

}  // namespace quire
