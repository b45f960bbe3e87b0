// SPDX-License-Identifier: Apache-2.0
// What a plan follows from besides the lengths: the backend's parameters and the attention spec.
//
// Both are constants of a backend and a layer group. None may follow from the batch, the number of
// threads or the size of the device, or equal sequences would get different bits.
#pragma once

#include <cstdint>

#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire {

// Into how many splits the keys of a row tile are cut: the largest number that keeps all of these.
// The defaults are those of a GPU; 32/8 heads of dim 128 in bf16 on an H200 gave the numbers.
struct SplitRule {
  // A shorter split does not pay for its start and its merge: splits of 128 lost 20-40 %, and 512
  // was best for 1 x 8k (16 splits of 8 heads fill 132 SMs once). REQUIRES: >= key_tile.
  std::int64_t min_keys = 512;
  // Up to here one split: 32 x 1k took 34 us unsplit and 42 us in splits of 512.
  std::int64_t unsplit_keys = 1024;
  // Merging one more partial takes as long as reading this many keys. The time of n splits of a
  // span, span / n + merge_keys * n, is least for n = sqrt(span / merge_keys). 32 gives 16 x 512 at
  // 8k, the best for 1 x 8k, 2 % behind the best (1024) for 32 and 128 x 8k and 6 % (768) for
  // 8 x 8k, and 64 x 2048 at 131k.
  std::int64_t merge_keys = 32;
  // Bytes of partial results, written and read again, per 100 bytes of K and V read. With it a
  // split grows with the rows of a tile and with value_dim.
  std::int64_t max_partial_percent = 5;
  // Items of one sequence after which more splits only cost: four for each of 132 SMs.
  std::int64_t max_items = 512;
  // Rows of partial results of one sequence, over all heads and splits: bounds the workspace. Full
  // tiles of 64 rows may make 128 items, one for each SM; decodes stay far below.
  std::int64_t max_partial_rows = 8192;
};

struct PlanParams {
  std::int64_t kv_heads_per_item = 1;  // at most; more than there are means all
  std::int64_t row_tile = 64;          // rows of one kv head that an item holds
  std::int64_t key_tile = 64;          // borders between splits are multiples of it
  // Rows of all kv heads that an item holds, at most, unless one head alone has more: a CPU walks
  // all kv heads of a block in decode, and one head at a time in prefill, where rows fill its
  // cache.
  std::int64_t item_rows = 64;
  // Rows whose arithmetic on one key takes as long as reading the key; weighs items, never cuts
  // them. By peak rates and bf16 of dim 128 about 13 with AVX-512, 80 with AMX, 130 on an H200.
  std::int64_t rows_per_key_read = 64;
  SplitRule split;
};

// All that a plan needs besides lengths. Trivially copyable: kernels take it as it is.
struct PlanSpec {
  PlanParams params;
  Mask mask;
  Alignment alignment = Alignment::kAligned;
  std::int64_t group = 1;  // query heads per kv head
  std::int64_t num_kv_heads = 1;
  std::int64_t key_bytes = 0;          // K and V of one key and kv head, with their scales
  std::int64_t partial_row_bytes = 0;  // value_dim f32, maximum and sum
};

// Throws Error(kInvalidArgument) if a parameter is below 1 or min_keys below key_tile.
// REQUIRES: validate(spec) has passed.
PlanSpec make_plan_spec(const AttentionSpec& spec, const PlanParams& params);

// What no plan of a batch within `bounds` exceeds.
struct PlanBounds {
  std::int64_t items = 0;
  std::int64_t merges = 0;
  std::int64_t partial_rows = 0;
};
PlanBounds plan_bounds(const PlanSpec& spec, const BatchBounds& bounds);

}  // namespace quire
