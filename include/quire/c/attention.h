// SPDX-License-Identifier: Apache-2.0
// The C interface: what attention means for one group of layers, and the values that one layer
// brings (quire/attention_spec.h in C++). docs/numerics.md states the mathematics.
#pragma once

#include "quire/c/base.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

enum {
  QUIRE_ALIGNED = 0,   // self-attention: query i of a sequence has position kv_len - q_len + i
  QUIRE_UNALIGNED = 1  // cross-attention: no positions
};

// How finely 8-bit K and V are scaled.
enum {
  QUIRE_SCALES_NONE = 0,
  QUIRE_SCALES_PER_TENSOR = 1,
  QUIRE_SCALES_PER_HEAD = 2,
  QUIRE_SCALES_PER_TOKEN_HEAD = 3
};

// How the elements of one block are ordered. From 256 on: known to one backend only.
enum { QUIRE_LAYOUT_PLAIN = 0, QUIRE_LAYOUT_PAIR_TILED = 1, QUIRE_LAYOUT_FIRST_PRIVATE = 256 };

// What calls under a spec may use: bits of quire_attention_spec::features.
enum {
  QUIRE_FEATURE_SOFTCAP = 1,
  QUIRE_FEATURE_ALIBI = 2,
  QUIRE_FEATURE_SINKS = 4,
  QUIRE_FEATURE_BIAS = 8,
  QUIRE_FEATURE_TREE_MASK = 16,
  QUIRE_FEATURE_LSE = 32
};

typedef struct quire_attention_spec {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int32_t num_q_heads;
  int32_t num_kv_heads;      // divides num_q_heads; query head h reads kv head h / (q / kv)
  int32_t head_dim;          // of Q and K
  int32_t value_dim;         // of V and the output; 0: head_dim
  int32_t q_dtype;           // QUIRE_F32, QUIRE_F16 or QUIRE_BF16
  int32_t out_dtype;         // q_dtype, or QUIRE_F32 for partial results
  int32_t kv_dtype;          // any
  int32_t block_size;        // tokens per block, any from 1 up; 0: 16
  int32_t kv_scales;         // QUIRE_SCALES_NONE unless kv_dtype is an 8-bit one
  int32_t v_in_k;            // 1: V is the first value_dim elements of K
  int32_t kv_layout;         // QUIRE_LAYOUT_PLAIN, ..., or what quire_preferred_layout gives
  int32_t alignment;         // QUIRE_ALIGNED, ...
  int32_t not_causal;        // 0: key_pos <= query_pos
  int32_t has_window_left;   // 1: key_pos >= query_pos - window_left
  int32_t has_window_right;  // 1: key_pos <= query_pos + window_right
  uint32_t features;         // QUIRE_FEATURE_LSE | ...
  int64_t window_left;
  int64_t window_right;
  int64_t chunk;  // floor(key_pos / chunk) == floor(query_pos / chunk); 0: off
} quire_attention_spec;

// The values of one layer. Arrays lie where the backend computes.
typedef struct quire_attention_params {
  uint32_t struct_bytes;
  uint32_t struct_version;
  float scale;                // S = scale * q.k; 0: 1 / sqrt(head_dim)
  float softcap;              // S = softcap * tanh(S / softcap) if > 0
  const float* alibi_slopes;  // [num_q_heads] or NULL: S -= slope * |query_pos - key_pos|
  const float* sinks;         // [num_q_heads] or NULL: out *= 1 / (1 + exp(sink - lse))
  // [num_sequences, num_q_heads, >= longest q_len, >= longest kv_len] or NULL, f32 or q_dtype:
  // S += bias; -inf hides the key. A stride of 0 broadcasts, but not on all axes at once.
  const quire_tensor* bias;
} quire_attention_params;

// QUIRE_INVALID_ARGUMENT naming the field and the value if the spec contradicts itself.
QUIRE_API quire_status quire_attention_spec_validate(const quire_attention_spec* spec);
// "32/8 heads, dim 128, bf16, ...", to be freed by quire_text_free.
QUIRE_API quire_status quire_attention_spec_text(const quire_attention_spec* spec, char** text);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
