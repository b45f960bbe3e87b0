// SPDX-License-Identifier: Apache-2.0
// Copies of blocks between caches in host memory: what copy, swap, export and import come to.
//
// The stored codes are copied, never decoded. Scales per (token, head) belong to the stored tokens
// and travel with them; scales per tensor and per head belong to the caller of each cache, who
// gives both caches the same ones. No byte outside the copied tokens is touched.
//
// REQUIRES, of both functions: src[i] and dst[i] are caches of one layer in host memory with equal
// shapes, dtype, block_size, v_in_k and scale granularity; each layout is plain or pair-tiled, in
// any combination, or both are the same opaque one; blocks exist, and no block of one cache is both
// source and destination. Layers, and copies, are independent: callers may split them over threads.
#pragma once

#include <span>

#include "quire/kv_cache.h"

namespace quire {

void copy_blocks_host(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies) noexcept;

// REQUIRES: also 0 <= first_token, first_token + num_tokens <= block_size; not opaque.
void copy_region_host(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& copy) noexcept;

}  // namespace quire
