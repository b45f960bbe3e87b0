// SPDX-License-Identifier: Apache-2.0
// What memory the elements of a cache cover: how far they reach, and whether two of them coincide.
// Host only; allocates nothing unless it throws.
#pragma once

#include <cstdint>

#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {

// An opaque block is bytes that only its backend can read.
constexpr bool is_opaque(KvLayoutId id) noexcept {
  return id >= KvLayoutId::kFirstPrivate;
}

// Where V of a cache that quire allocates begins, and how much memory it takes, in bytes from its
// first record on; scales that lie outside of the records are not counted. Throws
// Error(kInvalidArgument) where a size does not fit in 64 bits.
struct RecordExtent {
  std::int64_t v_begin_bytes = 0;
  std::int64_t size_bytes = 0;
};
RecordExtent record_extent(const KvLayout& layout, std::int64_t num_blocks);

// Element offsets from the base of K or V, half-open. Strides may be negative, so begin may be.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The smallest range that holds every element of the tensor. Throws Error(kInvalidArgument) where
// an offset does not fit in 64 bits. REQUIRES: the layout is not opaque.
ElementRange element_range(const KvCacheView& cache, KvTensor tensor);

// Throws Error(kInvalidArgument), naming the axes, where two elements of the cache share memory:
// then storing one token would change another. Accepted are strides that nest (each one at least as
// far as all that lies inside it), which every permutation, slice and interleaving of a dense
// tensor does; axes of extent 1 count for nothing. Throws also what element_range throws, first.
// REQUIRES: the layout is not opaque.
void require_distinct_elements(const KvCacheView& cache);

}  // namespace quire
