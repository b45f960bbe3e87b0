// SPDX-License-Identifier: Apache-2.0
// One attend call and one piece of it, as the levels of the CPU backend see them: plain values that
// have been validated, so that nothing below throws or allocates.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "quire/backend.h"

namespace quire::cpu {

// Keys per step of the online softmax. 64 keys of K and V of dim 128 are 64 KB of f32: L2.
inline constexpr std::int64_t kKeyTile = 64;
// Rows (token, head in group) that share one pass over K and V.
inline constexpr std::int64_t kRowTile = 32;

constexpr float larger_or_nan(float a, float b) noexcept {
  return a > b || a != a ? a : b;
}

struct AttendCall {
  AttentionSpec spec;
  AttentionParams params;
  TensorView q;  // [num_tokens, num_q_heads, head_dim]
  KvCacheView cache;
  AttentionOutput output;
  BatchView batch;
};

// The rows [row_begin, row_end) of one kv head of one sequence over a range of its keys. Row r is
// token r / group of the sequence and head r % group of the group.
struct RowTile {
  std::int64_t sequence = 0;
  std::int64_t kv_head = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  KeyRange keys;
};

// Unnormalised attention of some rows over some keys, a record a row: o [value_dim], max, sum.
// out = o / sum, lse = max + log(sum); max is -inf where nothing was visible.
struct RowStates {
  float* data = nullptr;  // [rows, stride]
  std::int64_t value_dim = 0;
  std::int64_t stride = 0;

  float* o(std::int64_t row) const noexcept { return data + row * stride; }
  float& max(std::int64_t row) const noexcept { return data[row * stride + value_dim]; }
  float& sum(std::int64_t row) const noexcept { return data[row * stride + value_dim + 1]; }
};

// Floats of one record: whole cache lines, so that threads do not share one.
constexpr std::int64_t row_state_stride(std::int64_t value_dim) {
  return (value_dim + 2 + 15) / 16 * 16;
}

// Scratch of one thread.
struct Scratch {
  float* q = nullptr;       // [kRowTile, head_dim]
  float* rows = nullptr;    // [kKeyTile, max(head_dim, value_dim)] K or V as floats
  float* k_t = nullptr;     // [head_dim, kKeyTile]
  float* scores = nullptr;  // [kKeyTile]
  RowStates states;         // [kRowTile]
};

std::int64_t scratch_floats(const AttentionSpec& spec);
Scratch scratch_at(float* memory, const AttentionSpec& spec);

// The rest of the softmax, the same for every level: writes out (and lse) of the rows of a tile.
// Normalises `states` in place.
void store_rows(const AttendCall& call, const RowTile& tile, const RowStates& states) noexcept;

// Adds the states of other keys to `total`, row by row.
void merge_states(const RowStates& part, std::int64_t num_rows, const RowStates& total) noexcept;

// What a level provides: unnormalised attention of one tile, row tile.row_begin + r into states r.
using AttendTile = void (*)(const AttendCall&, const RowTile&, const Scratch&,
                            const RowStates& states) noexcept;

namespace scalar {
void attend_tile(const AttendCall& call, const RowTile& tile, const Scratch& scratch,
                 const RowStates& states) noexcept;
}

}  // namespace quire::cpu
