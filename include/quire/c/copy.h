// SPDX-License-Identifier: Apache-2.0
// The C interface: copies of blocks within a cache, across caches, between host and device (swap),
// and between layouts.
//
// A block may be source many times, destination once, and in one cache never both. Caches are given
// as arrays of views, one per layer.
#pragma once

#include "quire/c/base.h"
#include "quire/c/kv_cache.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

// Copies are [num_copies, 2]: source block and destination block of each. Layouts must be equal, or
// both plain. Blocks of all layers are copied, scales included.
QUIRE_API quire_status quire_copy_blocks(quire_backend* backend,
                                         const quire_kv_cache_view* src,  // [num_layers]
                                         const quire_kv_cache_view* dst,  // [num_layers]
                                         int64_t num_layers, const int32_t* copies,
                                         int64_t num_copies, void* stream);
// The same for all layers of two caches of quire, or of one: what a step needs.
QUIRE_API quire_status quire_kv_cache_copy_blocks(quire_backend* backend, const quire_kv_cache* src,
                                                  const quire_kv_cache* dst, const int32_t* copies,
                                                  int64_t num_copies, void* stream);
// Tokens [first_token, first_token + num_tokens) of one block to the same place of another. Not for
// private layouts.
QUIRE_API quire_status quire_copy_region(quire_backend* backend,
                                         const quire_kv_cache_view* src,  // [num_layers]
                                         const quire_kv_cache_view* dst,  // [num_layers]
                                         int64_t num_layers, int32_t src_block, int32_t dst_block,
                                         int32_t first_token, int32_t num_tokens, void* stream);
// Any layout of this backend to a plain one of equal dtype.
QUIRE_API quire_status quire_export_blocks(quire_backend* backend,
                                           const quire_kv_cache_view* src,    // [num_layers]
                                           const quire_kv_cache_view* plain,  // [num_layers]
                                           int64_t num_layers, const int32_t* copies,
                                           int64_t num_copies, void* stream);
// And back.
QUIRE_API quire_status quire_import_blocks(quire_backend* backend,
                                           const quire_kv_cache_view* plain,  // [num_layers]
                                           const quire_kv_cache_view* dst,    // [num_layers]
                                           int64_t num_layers, const int32_t* copies,
                                           int64_t num_copies, void* stream);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
