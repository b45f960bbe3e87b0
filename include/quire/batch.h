// SPDX-License-Identifier: Apache-2.0
// One ragged batch: which rows of Q belong to which sequence, and where its keys lie.
//
// A BatchView only points. Its arrays must stay alive and unchanged until the last call that uses
// the batch prepared from it has finished (for device work: until the stream has passed it). All
// arrays of one view lie on one device; host arrays are validated in full, device arrays by shape.
#pragma once

#include <cstdint>

#include "quire/tensor.h"

namespace quire {

// Sequence s owns the query rows [begins[s], ends[s]). Ranges are ordered and do not overlap:
// ends[s] <= begins[s + 1]. Rows in no range are neither read nor written.
struct QueryRanges {
  ArrayView<std::int32_t> begins;  // [num_sequences]
  ArrayView<std::int32_t> ends;    // [num_sequences]

  // From one array of num_sequences + 1 offsets (cu_seqlens, query_start_loc, indptr).
  static QueryRanges packed(ArrayView<std::int32_t> offsets) {
    if (offsets.size < 1) return {};
    return {offsets.subview(0, offsets.size - 1), offsets.subview(1, offsets.size - 1)};
  }
  std::int64_t num_sequences() const noexcept { return begins.size; }
};

// Where key j of sequence s lies. Exactly one of three forms, see the factories.
struct BlockTables {
  enum class Kind : std::uint8_t { kPadded, kIndexed, kRagged };

  Kind kind = Kind::kPadded;
  ArrayView<std::int32_t> indices;  // padded: [num_sequences, row_stride]; indexed: [begins.back()]
  std::int64_t row_stride = 0;      // padded: entries per row
  ArrayView<std::int32_t> begins;   // indexed: [num_sequences + 1] into indices
  ArrayView<std::int64_t> rows;     // ragged: [num_sequences], the row of key 0 in the K/V tensors

  // Block of key j = indices[s * row_stride + j / block_size].
  static BlockTables padded(ArrayView<std::int32_t> indices, std::int64_t row_stride) {
    BlockTables tables;
    tables.indices = indices;
    tables.row_stride = row_stride;
    return tables;
  }
  // Block of key j = indices[begins[s] + j / block_size].
  static BlockTables indexed(ArrayView<std::int32_t> begins, ArrayView<std::int32_t> indices) {
    BlockTables tables;
    tables.kind = Kind::kIndexed;
    tables.begins = begins;
    tables.indices = indices;
    return tables;
  }
  // No blocks: key j is row rows[s] + j of a view with block_size 1. Rows may repeat and overlap.
  static BlockTables ragged(ArrayView<std::int64_t> rows) {
    BlockTables tables;
    tables.kind = Kind::kRagged;
    tables.rows = rows;
    return tables;
  }
};

// What the queries look at, and where new K and V go.
struct KvSide {
  ArrayView<std::int32_t> lens;  // [num_sequences] keys per sequence, new tokens included
  BlockTables blocks;
  ArrayView<std::int64_t>
      slots;  // [num_new_kv_tokens] block * block_size + offset; -1: do not store
};

// Replaces causality among the new tokens of a sequence: bit (i, j) says whether new token i sees
// new token j. Row-major, least significant bit first, rows padded to bytes.
struct TreeMask {
  ArrayView<std::uint8_t> bits;
  ArrayView<std::int64_t> begins;  // [num_sequences] byte offset into bits; -1: plain causal
  // Optional, [>= query rows], by query row: the position of a new token is kv_len - q_len + depth,
  // as query and as key; 0 <= depth < q_len. Without depths it is kv_len - q_len + i.
  ArrayView<std::int32_t> depths;

  bool present() const noexcept { return !begins.empty(); }
};

struct BatchView {
  QueryRanges queries;
  KvSide kv;
  TreeMask tree_mask;

  std::int64_t num_sequences() const noexcept { return queries.num_sequences(); }
};

// What a prepared batch, and a graph captured over it, may hold at most.
struct BatchBounds {
  std::int64_t max_sequences = 0;
  std::int64_t max_tokens = 0;        // rows of Q, and rows of new K and V
  std::int64_t max_kv_len = 0;        // keys of one sequence
  std::int64_t max_total_kv_len = 0;  // keys of all sequences: bounds partial results and tables
  std::int64_t max_q_len = 0;         // queries of one sequence; 0: max_tokens

  constexpr std::int64_t longest_query() const noexcept {
    return max_q_len > 0 && max_q_len < max_tokens ? max_q_len : max_tokens;
  }
};

}  // namespace quire
