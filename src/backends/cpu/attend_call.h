// SPDX-License-Identifier: Apache-2.0
// One attend call as the levels of the CPU backend see it, and the memory of one thread: plain
// values that have been validated, so that nothing below throws or allocates.
#pragma once

#include <cstdint>
#include <span>

#include "attention/mask.h"
#include "plan/plan.h"
#include "quire/backend.h"

namespace quire::cpu {

// Keys per step of the online softmax where an item walks several heads, and the borders of splits.
// 64 keys of K and V of eight heads of dim 128 in bf16 are 256 KB: the next step's keys fit a cache
// beside this one's.
inline constexpr std::int64_t kChunk = 64;
// The most that a level takes where it has many rows of one head.
inline constexpr std::int64_t kMaxChunk = 256;
// Elements T from a row of scores or weights to the next: a cache line more than its keys. Rows a
// power of two apart would share few sets of the first cache.
template <class T>
constexpr std::int64_t score_stride(std::int64_t width) {
  return width + 64 / static_cast<std::int64_t>(sizeof(T));
}
// Scores that a level has under way at once: two blocks of 32 rows, of two-byte elements at least.
inline constexpr std::int64_t kMaxScores = 2 * 32 * score_stride<std::uint16_t>(kMaxChunk);
// Rows (token, head in group) of one kv head that share one pass over K and V: a multiple of the
// rows of every level's matrix block. Finding keys, and the blocks with nothing beside them at both
// ends of a pass, cost 5 % of prefill with AMX at half as many.
inline constexpr std::int64_t kRowTile = 384;
// Rows of all kv heads of an item, unless one head alone has more.
inline constexpr std::int64_t kItemRows = 96;
// Lanes of the widest level; vectors of partial sums have this many.
inline constexpr std::int64_t kMaxLanes = 16;

// Rows of states from one kv head of an item to the next: levels that work on 16 rows at a time
// write that many.
constexpr std::int64_t head_row_stride(std::int64_t num_rows) {
  constexpr std::int64_t kTileRows = 16;
  return num_rows <= kTileRows ? num_rows : (num_rows + kTileRows - 1) / kTileRows * kTileRows;
}
// Of all heads of an item, at most: a row tile, more than five heads of 17 rows. Eight sequences of
// eight heads of four rows go together.
inline constexpr std::int64_t kMaxStateRows = 384;
static_assert(kItemRows / 17 * 32 <= kMaxStateRows && kRowTile <= kMaxStateRows);

struct AttendCall {
  AttentionSpec spec;
  AttentionParams params;
  TensorView q;  // [num_tokens, num_q_heads, head_dim]
  KvCacheView cache;
  AttentionOutput output;
  BatchView batch;
  bool drops_prefetches = false;  // as CpuFeatures says

  // Where prefetches are dropped, half a block of each head of a tiled layout is too short a piece
  // to be fetched a whole chunk ahead: with blocks of 128 that took 15 to 20 % longer on Zen5 than
  // whole blocks of a head, 32 KB before they are read. With smaller blocks, of which a chunk holds
  // all heads, it is the other way around.
  bool fetches_by_heads() const noexcept {
    return drops_prefetches && cache.format.layout == KvLayoutId::kPairTiled &&
           cache.format.block_size > kChunk;
  }
};

// Unnormalised attention of some rows over some keys, a record a row: o [value_dim], max, sum.
// out = o / sum, lse = (max + log2(sum)) ln 2; max is -inf where nothing was visible.
struct RowStates {
  float* data = nullptr;  // [rows, stride]
  std::int64_t value_dim = 0;
  std::int64_t stride = 0;

  float* o(std::int64_t row) const noexcept { return data + row * stride; }
  float& max(std::int64_t row) const noexcept { return data[row * stride + stride - 2]; }
  float& sum(std::int64_t row) const noexcept { return data[row * stride + stride - 1]; }
  RowStates from(std::int64_t row) const noexcept { return {o(row), value_dim, stride}; }
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

// Dims of a panel: whole vectors.
constexpr std::int64_t padded_dims(std::int64_t dims) {
  return round_up(dims, 2 * kMaxLanes);
}

// Floats of one record: whole cache lines, so that threads do not share one, and whole vectors.
constexpr std::int64_t row_state_stride(std::int64_t value_dim) {
  return padded_dims(value_dim) + kMaxLanes;
}

// The memory of one thread. "Words" are f32, or pairs of bf16 where a level multiplies those.
struct Scratch {
  float* q = nullptr;        // [kMaxStateRows, padded head_dim]
  float* scores = nullptr;   // [kMaxScores]
  float* weights = nullptr;  // [kMaxScores]
  float* k = nullptr;        // [padded head_dim, kMaxChunk]
  float* v = nullptr;        // [kMaxChunk, padded value_dim]
  float* sums = nullptr;     // [kMaxStateRows, kMaxLanes], lane by lane
  RowStates states;          // [kMaxStateRows], of head h from h * head_row_stride on
};

std::int64_t scratch_floats(const AttentionSpec& spec);
Scratch scratch_at(float* memory, const AttentionSpec& spec);

// Sequences whose items may go together, at most, and the rows of one head that each may have:
// more wait for arithmetic, not for keys.
inline constexpr int kMaxGroup = 8;
inline constexpr std::int64_t kMaxGroupRows = 16;

// The rows of states that an item takes.
constexpr std::int64_t item_state_rows(std::int64_t num_heads, std::int64_t num_rows) {
  return num_heads * head_row_stride(num_rows);
}
// What belongs to item i of several that go together: rows of its own, all else in common.
Scratch scratch_of_item(const Scratch& scratch, const AttentionSpec& spec, const WorkItem& item,
                        std::int64_t i) noexcept;

// What a level provides: unnormalised attention of one item into scratch.states, kv head by kv
// head; or of several of different sequences over the same blocks, alike but for that, each as if
// it were alone. `next`, if any, is what this thread will work on then: its first keys are fetched
// ahead.
using AttendItems = void(const AttendCall& call, std::span<const WorkItem> items,
                         const WorkItem* next, const Scratch& scratch) noexcept;

// Writes out (and lse) of the rows of one kv head.
using StoreRows = void(const AttendCall& call, std::int64_t sequence, std::int64_t kv_head,
                       const IndexRange& rows, const RowStates& states) noexcept;

// Adds the states of other keys to `total`, row by row.
using MergeStates = void(const RowStates& part, std::int64_t num_rows,
                         const RowStates& total) noexcept;

namespace scalar {
AttendItems attend_items;
StoreRows store_rows;
MergeStates merge_states;
}  // namespace scalar
#if defined(__x86_64__)
namespace avx2 {
AttendItems attend_items;
StoreRows store_rows;
MergeStates merge_states;
}  // namespace avx2
namespace avx512 {
AttendItems attend_items;
StoreRows store_rows;
MergeStates merge_states;
}  // namespace avx512
namespace avx512_bf16 {
AttendItems attend_items;
}
namespace amx {
// Asks the system for the tile registers, which a process does not have by default.
bool request_tiles() noexcept;
AttendItems attend_items;
}  // namespace amx
#endif

}  // namespace quire::cpu
