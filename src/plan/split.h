// SPDX-License-Identifier: Apache-2.0
// How one sequence is cut up: row tiles, ranges of kv heads, splits of the keys. Pure functions of
// its own lengths and the plan spec. Host and device; no exceptions, no allocation.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "base/host_device.h"
#include "plan/plan_spec.h"

namespace quire {

struct SequencePlan {
  std::int64_t num_row_tiles = 0;
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;
  std::int32_t heads_per_item = 1;  // kv heads; the last range may hold fewer
  std::int32_t num_head_ranges = 1;
  std::int32_t num_splits = 1;  // of every row tile
  bool has_tree = false;

  // A unit is a row tile of a range of kv heads; its splits are merged if there are several.
  QUIRE_HOST_DEVICE constexpr std::int64_t num_units() const {
    return num_row_tiles * num_head_ranges;
  }
};
static_assert(sizeof(SequencePlan) == 32);

QUIRE_HOST_DEVICE constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// REQUIRES: a >= 0, b > 0.
QUIRE_HOST_DEVICE QUIRE_DEVICE_CALL constexpr std::int64_t quotient(std::int64_t a,
                                                                    std::int64_t b) {
  return a / b;
}
QUIRE_HOST_DEVICE constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return quotient(a + b - 1, b);
}

// The largest r with r * r <= value, digit by digit. REQUIRES: 0 <= value < 2^32.
QUIRE_HOST_DEVICE constexpr std::int64_t floor_sqrt(std::int64_t value) {
  std::int64_t rest = value;
  std::int64_t root = 0;
  std::int64_t bit = std::int64_t{1} << (value < 65536 ? 14 : 30);
  while (bit > value) bit >>= 2;
  for (; bit != 0; bit >>= 2) {
    const bool fits = rest >= root + bit;
    if (fits) rest -= root + bit;
    root = (root >> 1) + (fits ? bit : 0);
  }
  return root;
}

// The keys that the rows of the tile from `row` on may see; the smallest range unless there is a
// tree mask.
QUIRE_HOST_DEVICE QUIRE_DEVICE_CALL constexpr KeyRange tile_keys(const PlanSpec& spec,
                                                                 const SequencePlan& plan,
                                                                 std::int64_t row) {
  SequenceView s;
  s.q_len = plan.q_len;
  s.kv_len = plan.kv_len;
  if (plan.has_tree) return keys_seen_in_tree(spec.mask, s);
  std::int64_t first = 0;
  std::int64_t end = s.q_len;
  if (plan.num_row_tiles > 1) {
    const std::int64_t row_end = smaller(row + spec.params.row_tile, s.q_len * spec.group);
    first = quotient(row, spec.group);
    end = ceil_div(row_end, spec.group);
  }
  return keys_seen(spec.mask, spec.alignment, s, first, end);
}

// Split `split` of the keys of a row tile: equal numbers of key tiles, up to one.
QUIRE_HOST_DEVICE constexpr KeyRange split_keys(const PlanSpec& spec, const KeyRange& keys,
                                                std::int64_t split, std::int64_t num_splits) {
  if (num_splits == 1) return keys;
  const std::int64_t key_tile = spec.params.key_tile;
  const std::int64_t first = quotient(keys.begin, key_tile);
  const std::int64_t num_tiles = ceil_div(keys.end, key_tile) - first;
  const std::int64_t begin = (first + quotient(num_tiles * split, num_splits)) * key_tile;
  const std::int64_t end = (first + quotient(num_tiles * (split + 1), num_splits)) * key_tile;
  return {begin < keys.begin ? keys.begin : begin, smaller(end, keys.end)};
}

// The length of the shortest key range of all row tiles: splits are counted by it, so that none is
// too short. Without a chunk border between them the first or the last tile has it, for begin and
// end of the range grow with the row until they meet the first and the last key. With one, 0.
QUIRE_HOST_DEVICE constexpr std::int64_t shortest_span(const PlanSpec& spec,
                                                       const SequencePlan& plan) {
  const std::int64_t last_row = (plan.num_row_tiles - 1) * spec.params.row_tile;
  const std::int64_t span = tile_keys(spec, plan, last_row).size();
  if (plan.num_row_tiles == 1 || plan.has_tree) return span;
  if (spec.alignment == Alignment::kAligned && spec.mask.chunk > 0) {
    const std::int64_t first_new = plan.kv_len - plan.q_len;
    if (floor_div(first_new, spec.mask.chunk) != floor_div(plan.kv_len - 1, spec.mask.chunk)) {
      return 0;
    }
  }
  return smaller(span, tile_keys(spec, plan, 0).size());
}

// As many of `count` as `total` pays for at `price` each. A division is as slow as the rest of a
// plan, and mostly all are paid for. REQUIRES: price > 0.
QUIRE_HOST_DEVICE constexpr std::int64_t affordable(std::int64_t count, std::int64_t price,
                                                    std::int64_t total) {
  return count * price <= total ? count : quotient(total, price);
}

// Into how many splits a span may be cut by a sequence of these rows and units, at least 1.
QUIRE_HOST_DEVICE constexpr std::int64_t count_splits(const PlanSpec& spec, std::int64_t span,
                                                      std::int64_t num_rows,
                                                      std::int64_t num_units) {
  const SplitRule& rule = spec.params.split;
  if (span <= rule.unsplit_keys) return 1;
  const std::int64_t tile_rows = smaller(num_rows, spec.params.row_tile);
  std::int64_t splits = floor_sqrt(quotient(span, rule.merge_keys));
  splits = affordable(splits, rule.min_keys, span);
  splits = affordable(splits, num_units, rule.max_items);
  splits = affordable(splits, num_rows * spec.num_kv_heads, rule.max_partial_rows);
  splits = affordable(splits, 2 * 100 * tile_rows * spec.partial_row_bytes,
                      span * spec.key_bytes * rule.max_partial_percent);
  return splits < 1 ? 1 : splits;
}

// The ranges of kv heads of a sequence whose fullest row tile has `tile_rows` rows, even ones.
QUIRE_HOST_DEVICE constexpr void plan_heads(const PlanSpec& spec, std::int64_t tile_rows,
                                            SequencePlan& plan) {
  std::int64_t heads = smaller(spec.params.kv_heads_per_item, spec.num_kv_heads);
  if (heads * tile_rows > spec.params.item_rows) {
    heads = spec.params.item_rows < tile_rows ? 1 : quotient(spec.params.item_rows, tile_rows);
  }
  std::int64_t ranges = spec.num_kv_heads;
  if (heads > 1) {
    ranges = ceil_div(spec.num_kv_heads, heads);
    heads = ceil_div(spec.num_kv_heads, ranges);
  }
  plan.heads_per_item = static_cast<std::int32_t>(heads);
  plan.num_head_ranges = static_cast<std::int32_t>(ranges);
}

// REQUIRES: lengths below 2^31.
QUIRE_HOST_DEVICE constexpr SequencePlan plan_sequence(const PlanSpec& spec,
                                                       const SequenceView& s) {
  SequencePlan plan;
  plan.q_len = static_cast<std::int32_t>(s.q_len);
  plan.kv_len = static_cast<std::int32_t>(s.kv_len);
  plan.has_tree = s.tree_bits != nullptr;
  if (s.q_len == 0) return plan;
  const std::int64_t num_rows = s.q_len * spec.group;
  const std::int64_t row_tile = spec.params.row_tile;
  plan.num_row_tiles = num_rows <= row_tile ? 1 : ceil_div(num_rows, row_tile);
  plan_heads(spec, smaller(num_rows, row_tile), plan);
  if (plan.num_units() * 2 <= spec.params.split.max_items) {
    plan.num_splits = static_cast<std::int32_t>(
        count_splits(spec, shortest_span(spec, plan), num_rows, plan.num_units()));
  }
  return plan;
}

}  // namespace quire
