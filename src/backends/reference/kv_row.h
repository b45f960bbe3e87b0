// SPDX-License-Identifier: Apache-2.0
// One row of K or V in a cache: where its elements and its scale lie, element by element, in every
// layout that is not opaque. Host memory.
#pragma once

#include <cstdint>

#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {

struct KvRow {
  const KvCacheView& cache;
  KvTensor tensor;
  std::int64_t slot;
  std::int64_t head;
  std::int64_t block = slot / cache.format.block_size;
  std::int64_t token = slot % cache.format.block_size;

  std::int64_t num_dims() const {
    return tensor == KvTensor::kK ? cache.head_dim : cache.value_dim;
  }
  void* data() const { return tensor == KvTensor::kK ? cache.k : cache.v; }
  std::int64_t offset(std::int64_t d) const {
    return element_offset(cache, tensor, block, head, token, d);
  }
  bool has_scale() const { return cache.format.scales != ScaleGranularity::kNone; }
  // REQUIRES: has_scale().
  float& scale() const {
    const KvScales& scales = tensor == KvTensor::kK ? cache.k_scales : cache.v_scales;
    return scales.data[scale_offset(scales, block, head, token)];
  }
};

}  // namespace quire
