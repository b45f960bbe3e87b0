// SPDX-License-Identifier: Apache-2.0
// The C interface: one ragged batch, and what a prepared batch may hold at most (quire/batch.h in
// C++).
//
// A batch only points. Its arrays must stay alive and unchanged until the last call that uses the
// batch prepared from it has finished (for device work: until the stream has passed it). All of
// them lie on one device; host arrays are checked in full, device arrays by shape.
#pragma once

#include "quire/c/base.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

// Where key j of sequence s lies.
enum {
  QUIRE_TABLE_PADDED = 0,   // block of key j = block_indices[s * row_stride + j / block_size]
  QUIRE_TABLE_INDEXED = 1,  // block of key j = block_indices[table_begins[s] + j / block_size]
  QUIRE_TABLE_RAGGED = 2    // key j is row rows[s] + j of a view with block size 1
};

typedef struct quire_batch {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_sequences;
  // Sequence s owns the query rows [query_begins[s], query_ends[s]), in order, without overlap.
  // Rows in no range are neither read nor written.
  const int32_t* query_begins;   // [num_sequences], or [num_sequences + 1] without query_ends
  const int32_t* query_ends;     // [num_sequences]; NULL: each ends where the next begins
  const int32_t* kv_lens;        // [num_sequences] keys per sequence, new tokens included
  const int32_t* block_indices;  // [num_block_indices]; padded: [num_sequences, row_stride]
  int64_t num_block_indices;
  int64_t row_stride;           // padded
  const int32_t* table_begins;  // indexed: [num_sequences + 1]
  const int64_t* rows;          // ragged: [num_sequences], the row of key 0
  const int64_t* slots;         // [num_slots] block * block_size + offset; -1: do not store
  int64_t num_slots;            // rows of new K and V
  // Replaces causality among the new tokens of a sequence: bit (i, j) says whether new token i sees
  // new token j. Row-major, least significant bit first, rows padded to bytes.
  const uint8_t* tree_bits;    // [num_tree_bytes] or NULL
  const int64_t* tree_begins;  // [num_sequences] byte offset into tree_bits; -1: plain causal
  const int32_t* tree_depths;  // [num_tree_depths] or NULL, by query row: position among the new
  int64_t num_tree_bytes;
  int64_t num_tree_depths;  // at least the query rows
  int32_t table_kind;       // QUIRE_TABLE_PADDED, ...
  int32_t device_kind;      // of all arrays: QUIRE_HOST, ...
  int32_t device_index;
  int32_t reserved;  // 0
} quire_batch;

typedef struct quire_batch_bounds {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t max_sequences;
  int64_t max_tokens;        // rows of Q, and rows of new K and V
  int64_t max_kv_len;        // keys of one sequence
  int64_t max_total_kv_len;  // keys of all sequences
  int64_t max_q_len;         // queries of one sequence; 0: max_tokens
} quire_batch_bounds;

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
