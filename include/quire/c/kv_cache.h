// SPDX-License-Identifier: Apache-2.0
// The C interface: the paged KV cache (quire/kv_cache.h in C++). docs/kv_layout.md draws the
// layouts.
#pragma once

#include "quire/c/attention.h"
#include "quire/c/base.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_backend quire_backend;
typedef struct quire_kv_cache quire_kv_cache;

// The cache of one layer, of quire or of the caller. Strides are those of (block, head, token), in
// elements; the dims of one token and head are contiguous. Scales: zero strides broadcast.
// quire_kv_cache_layer and the quire_view functions fill it.
typedef struct quire_kv_cache_view {
  uint32_t struct_bytes;
  uint32_t struct_version;
  void* k;          // [num_blocks, num_kv_heads, block_size, head_dim] in the order of k_strides
  void* v;          // [num_blocks, num_kv_heads, block_size, value_dim] in the order of v_strides
  float* k_scales;  // 8-bit formats: [num_blocks, num_kv_heads, block_size] by k_scale_strides
  float* v_scales;  // the same for V
  int64_t k_strides[3];
  int64_t v_strides[3];
  int64_t k_scale_strides[3];
  int64_t v_scale_strides[3];
  int64_t num_blocks;
  int64_t opaque_k_bytes;  // private layouts: bytes of one block's K, and V; else 0
  int64_t opaque_v_bytes;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t value_dim;
  int32_t kv_dtype;    // from here on as in quire_attention_spec
  int32_t block_size;  // 0: 16
  int32_t kv_scales_kind;
  int32_t v_in_k;
  int32_t kv_layout;
  int32_t device_kind;
  int32_t device_index;
} quire_kv_cache_view;

typedef struct quire_kv_cache_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_blocks;
  int32_t num_layers;  // 0: 1
  int32_t huge_pages;  // 1: where the system offers them
  int32_t on_host;     // 1: in (pinned) host memory of the backend, the other end of a swap
  int32_t reserved;    // 0
} quire_kv_cache_options;

// Storage of all layers of one group in the layout that spec->kv_layout names. Uninitialised;
// scales per tensor and per head start at 1.
QUIRE_API quire_status quire_kv_cache_create(quire_backend* backend,
                                             const quire_attention_spec* spec,
                                             const quire_kv_cache_options* options,
                                             quire_kv_cache** cache);
QUIRE_API quire_status quire_kv_cache_destroy(quire_kv_cache* cache);
// Valid as long as the cache.
QUIRE_API quire_status quire_kv_cache_layer(const quire_kv_cache* cache, int32_t layer,
                                            quire_kv_cache_view* view);
// Each result may be NULL.
QUIRE_API quire_status quire_kv_cache_size(const quire_kv_cache* cache, int32_t* num_layers,
                                           int64_t* num_blocks, int64_t* size_bytes);

// The order of the axes of a plain tensor that a caller brings.
enum { QUIRE_BLOCK_HEAD_TOKEN_DIM = 0, QUIRE_BLOCK_TOKEN_HEAD_DIM = 1 };
// How one tensor holds both K and V.
enum {
  QUIRE_KV_FIRST = 0,      // [2, num_blocks, ...]
  QUIRE_KV_PER_BLOCK = 1,  // [num_blocks, 2, ...]
  QUIRE_KV_PER_TOKEN = 2   // [..., head_dim + value_dim]: K then V of one token and head
};

// A view over K and V tensors of the caller (rank 4, any strides but 1 for dim); with v_in_k `v` is
// NULL. Scales are set on the result.
QUIRE_API quire_status quire_view_kv(const quire_attention_spec* spec, int32_t order,
                                     const quire_tensor* k, const quire_tensor* v,
                                     quire_kv_cache_view* view);
// The same from one tensor that holds both (rank 5, or 4 for QUIRE_KV_PER_TOKEN).
QUIRE_API quire_status quire_split_kv(const quire_attention_spec* spec, int32_t order,
                                      int32_t packing, const quire_tensor* kv,
                                      quire_kv_cache_view* view);
// Ragged K [rows, num_kv_heads, head_dim] and V [rows, num_kv_heads, value_dim] as a view with
// block size 1; attend only reads it. REQUIRES: spec->block_size == 1.
QUIRE_API quire_status quire_view_ragged(const quire_attention_spec* spec, const quire_tensor* k,
                                         const quire_tensor* v, quire_kv_cache_view* view);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
