// SPDX-License-Identifier: Apache-2.0
// Rows of the operation's cache tensors as floats, and blocks of them to and from plain caches.
//
//   f32, f16, bf16   [num_kv_heads, 32, dim], a row is dim elements
//   u8 K             [num_kv_heads, 32 + 8, dim]: of each dim a scale [dim], then a zero point
//   [dim],
//                    both f32, then the codes [32, dim]
//   u8 V             [num_kv_heads, 32, dim + 8]: of each token a scale, a zero point and its codes
//
// A value is (code - zero point) * scale. Which form a tensor has is read from the compiled model;
// a form that is none of these is refused. Host memory; pure functions.
#pragma once

#include <cstdint>

#include "backends/openvino/paged_attention.h"
#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire::openvino {

// Throws Error(kUnsupported) naming the form if rows of it cannot be told apart.
void require_known_form(const CacheForm& form, CacheElement element, int head_dim, int value_dim);

// Copies one block. Of u8, export rounds to the i8 format of the plain cache.
// REQUIRES: require_known_form; views of equal shapes; blocks exist.
void export_block(const KvCacheView& cache, const CacheForm& form, std::int64_t block,
                  const KvCacheView& plain, std::int64_t plain_block);
// REQUIRES: as above, and an element other than u8.
void import_block(const KvCacheView& plain, std::int64_t plain_block, const KvCacheView& cache,
                  const CacheForm& form, std::int64_t block);

}  // namespace quire::openvino
