// SPDX-License-Identifier: Apache-2.0
// The inputs of a case as mathematics sees them: by sequence, query and key, without blocks in
// places, strides or padding. An Arrangement (arrangement.h) puts them into memory.
//
// K and V lie in logical blocks; sequences that share a prefix share logical blocks. Everything
// that must not matter is NaN (int8: -128) already here: keys that no row sees, bias where no row
// looks.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/case.h"

namespace quire::conformance {

struct ProblemSequence {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t first_token = 0;      // of its queries among all
  std::vector<std::int32_t> blocks;  // logical block of keys [n * block_size, ...)
  std::vector<std::uint8_t> tree;    // [q_len, q_len] 0 or 1, or empty
  std::vector<std::int32_t> depths;  // [q_len], or empty

  std::int64_t query_position(std::int64_t i) const noexcept;
  std::int64_t key_position(std::int64_t j) const noexcept;
};

// K or V of every logical slot.
struct ProblemKv {
  int dim = 0;
  std::vector<float> source;  // [num_slots, num_kv_heads, dim] as new K and V bring it
  std::vector<float> stored;  // [num_slots, num_kv_heads, dim] what the cache holds, decoded
  std::vector<float> scales;  // [num_slots, num_kv_heads]; a value is stored * scale
  double max_magnitude = 0;   // over the values that some row sees
};

// Dims of 1 broadcast.
struct ProblemBias {
  std::int64_t num_sequences = 0, num_heads = 0, num_queries = 0, num_keys = 0;
  std::vector<float> values;  // [num_sequences, num_heads, num_queries, num_keys], or empty

  bool present() const noexcept { return !values.empty(); }
  std::int64_t index(std::int64_t s, std::int64_t h, std::int64_t i, std::int64_t j) const noexcept;
};

struct NewToken {
  std::int64_t sequence = 0;
  std::int64_t key = 0;
};

struct KeySpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Problem {
  Case c;
  AttentionSpec spec;  // layout kPlain
  float scale = 1.0F;
  float softcap = 0.0F;
  std::vector<float> alibi_slopes;  // [num_q_heads], or empty
  std::vector<float> sinks;         // [num_q_heads], or empty
  std::vector<ProblemSequence> sequences;
  std::int64_t num_tokens = 0;
  std::vector<float> q;  // [num_tokens, num_q_heads, head_dim], exact in q_dtype
  std::int64_t num_blocks = 0;
  ProblemKv k;
  ProblemKv v;                     // with v_in_k: the first value_dim elements of K
  std::vector<std::uint8_t> seen;  // [num_slots] whether some row sees it
  ProblemBias bias;
  std::vector<NewToken> new_tokens;

  std::int64_t num_slots() const noexcept { return num_blocks * spec.kv.block_size; }
  std::int64_t slot(std::int64_t s, std::int64_t j) const noexcept;
  // By masks alone; a bias of -inf hides more.
  bool is_visible(std::int64_t s, std::int64_t i, std::int64_t j) const noexcept;
};

Problem make_problem(const Case& c);

// The same without values: neither Q, K and V nor trees, bias and what is seen. For benchmarks,
// whose caches are too large to draw number by number; arrange() and cost_of() need no more.
Problem make_outline(const Case& c);

// The keys [begin, end) of every sequence, under another spec of equal heads, dims and cache.
// REQUIRES: spans [num_sequences], each beginning at a block; no bias, tree mask or new tokens.
Problem slice_keys(const Problem& problem, const AttentionSpec& spec,
                   const std::vector<KeySpan>& spans);

// Rounds to a format and back.
float round_to(DType dtype, float x) noexcept;

}  // namespace quire::conformance
