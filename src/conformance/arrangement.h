// SPDX-License-Identifier: Apache-2.0
// One way to bring a problem, or some of its sequences, into a batch: their order, the rows of Q,
// the places of the blocks, the tables. Results must not depend on it.
//
// Table entries of blocks that no row sees are garbage, and so is what lies between tree masks.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/problem.h"
#include "quire/batch.h"

namespace quire::conformance {

struct ArrangeOptions {
  std::vector<std::int64_t> order;  // which sequences of the problem, in which order
  std::int64_t padding_rows = 0;
  std::int64_t first_block = 0;
  bool shuffled = true;
  bool padding_slots = false;
  TableStyle table = TableStyle::kPadded;
  std::uint64_t seed = 0;
};

// As the case says: all sequences, in order.
ArrangeOptions options_of(const Problem& problem);

struct Arrangement {
  std::vector<std::int64_t> order;      // [n] sequence of the problem
  std::vector<std::int32_t> q_begins;   // [n] rows of Q
  std::vector<std::int32_t> q_ends;     // [n]
  std::vector<std::int32_t> q_offsets;  // [n + 1] if rows are packed, else empty
  std::int64_t num_rows = 0;
  std::vector<std::int32_t> kv_lens;  // [n]

  std::vector<std::int32_t> place;  // [problem.num_blocks] block of the cache
  std::int64_t num_blocks = 0;      // of the cache, unused ones included
  BlockTables::Kind kind = BlockTables::Kind::kPadded;
  std::vector<std::int32_t> indices;
  std::int64_t row_stride = 0;
  std::vector<std::int32_t> begins;  // [n + 1]
  std::vector<std::int64_t> rows;    // [n]

  std::vector<std::int64_t> new_slots;  // [num_new] of the problem; -1: a row that is not stored
  std::vector<std::int64_t> slots;      // [num_new] of the cache; -1: do not store

  std::vector<std::uint8_t> tree_bits;
  std::vector<std::int64_t> tree_begins;  // [n], or empty
  std::vector<std::int32_t> depths;       // [num_rows], or empty

  std::int64_t cache_slot(const Problem& problem, std::int64_t slot) const noexcept;
};

Arrangement arrange(const Problem& problem, const ArrangeOptions& options);

}  // namespace quire::conformance
