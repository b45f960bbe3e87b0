// SPDX-License-Identifier: Apache-2.0
// Which keys a query may see: the predicate that defines it, and the ranges that kernels and plans
// walk. Host and device; no exceptions, no allocation.
//
// The ranges are the smallest half-open ones that hold every visible key where no tree mask is
// involved, and a superset otherwise; mask_test.cc holds them against the predicate.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire {

// One sequence of a batch as the masks see it.
struct SequenceView {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  const std::uint8_t* tree_bits = nullptr;    // its own rows of the tree mask, or none
  const std::int32_t* tree_depths = nullptr;  // [q_len], or none

  // Queries and keys from here on are the new tokens of an aligned sequence.
  QUIRE_HOST_DEVICE constexpr std::int64_t first_new() const { return kv_len - q_len; }
};

// Sequence s of a batch. A sequence without a tree mask of its own has no depths either.
QUIRE_HOST_DEVICE constexpr SequenceView sequence_view(const BatchView& batch, std::int64_t s) {
  const std::int64_t first_row = batch.queries.begins.data[s];
  SequenceView sequence;
  sequence.q_len = batch.queries.ends.data[s] - first_row;
  sequence.kv_len = batch.kv.lens.data[s];
  const TreeMask& tree = batch.tree_mask;
  if (tree.begins.size == 0 || tree.begins.data[s] < 0) return sequence;
  sequence.tree_bits = tree.bits.data + tree.begins.data[s];
  if (tree.depths.size != 0) sequence.tree_depths = tree.depths.data + first_row;
  return sequence;
}

struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // >= begin
  QUIRE_HOST_DEVICE constexpr std::int64_t size() const { return end - begin; }
  QUIRE_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
};

QUIRE_HOST_DEVICE constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
}

// Position of query i; may be negative.
QUIRE_HOST_DEVICE constexpr std::int64_t query_position(const SequenceView& s, std::int64_t i) {
  return s.first_new() + (s.tree_depths != nullptr ? s.tree_depths[i] : i);
}

// Position of key j.
QUIRE_HOST_DEVICE constexpr std::int64_t key_position(const SequenceView& s, std::int64_t j) {
  const bool is_new = s.tree_depths != nullptr && j >= s.first_new();
  return is_new ? s.first_new() + s.tree_depths[j - s.first_new()] : j;
}

// Bit (i, j) of a tree mask: rows of ceil(q_len / 8) bytes, least significant bit first.
QUIRE_HOST_DEVICE constexpr bool tree_bit(const SequenceView& s, std::int64_t i, std::int64_t j) {
  const std::int64_t row_bytes = (s.q_len + 7) / 8;
  return ((s.tree_bits[i * row_bytes + j / 8] >> (j % 8)) & 1) != 0;
}

// Bytes that the tree mask of one sequence takes.
QUIRE_HOST_DEVICE constexpr std::int64_t tree_mask_bytes(std::int64_t q_len) {
  return q_len * ((q_len + 7) / 8);
}

// The definition: may query i see key j? REQUIRES: 0 <= i < q_len, 0 <= j < kv_len.
QUIRE_HOST_DEVICE constexpr bool is_visible(const Mask& mask, Alignment alignment,
                                            const SequenceView& s, std::int64_t i, std::int64_t j) {
  if (alignment == Alignment::kUnaligned) return true;
  const std::int64_t query = query_position(s, i);
  const std::int64_t key = key_position(s, j);
  if (mask.causal) {
    const bool among_new = s.tree_bits != nullptr && j >= s.first_new();
    if (among_new ? !tree_bit(s, i, j - s.first_new()) : key > query) return false;
  }
  if (mask.window_left >= 0 && key < query - mask.window_left) return false;
  if (mask.window_right >= 0 && key > query + mask.window_right) return false;
  return mask.chunk <= 0 || floor_div(key, mask.chunk) == floor_div(query, mask.chunk);
}

// May any query see key j? What none sees has no place in the cache that could be looked at.
QUIRE_HOST_DEVICE constexpr bool is_seen(const Mask& mask, Alignment alignment,
                                         const SequenceView& s, std::int64_t j) {
  std::int64_t i = s.q_len;  // from the last one down, which in most batches sees most
  while (i > 0 && !is_visible(mask, alignment, s, i - 1, j)) --i;
  return i > 0;
}

// The keys with positions that a query at `position` may see, causality and windows and chunk.
QUIRE_HOST_DEVICE constexpr KeyRange positions_seen(const Mask& mask, std::int64_t position,
                                                    std::int64_t kv_len) {
  std::int64_t begin = 0;
  std::int64_t end = kv_len;
  if (mask.causal && position + 1 < end) end = position + 1;
  if (mask.window_left >= 0 && position - mask.window_left > begin) {
    begin = position - mask.window_left;
  }
  if (mask.window_right >= 0 && position + mask.window_right + 1 < end) {
    end = position + mask.window_right + 1;
  }
  if (mask.chunk > 0) {
    const std::int64_t chunk_begin = floor_div(position, mask.chunk) * mask.chunk;
    if (chunk_begin > begin) begin = chunk_begin;
    if (chunk_begin + mask.chunk < end) end = chunk_begin + mask.chunk;
  }
  return {begin, end > begin ? end : begin};
}

// The keys that some query of a sequence with a tree mask may see. Depths order positions freely:
// from the earliest possible query on, all that is new included.
QUIRE_HOST_DEVICE constexpr KeyRange keys_seen_in_tree(const Mask& mask, const SequenceView& s) {
  const KeyRange old = positions_seen(mask, s.first_new(), s.kv_len);
  return {old.begin < s.first_new() ? old.begin : s.first_new(), s.kv_len};
}

// Of the keys before the new ones, the first that some query of a sequence with a tree mask may
// see; first_new() if there is none. From there on to first_new() all are seen: a query of a tree
// lies at first_new() or later, so neither causality nor a right window ends its view earlier.
QUIRE_HOST_DEVICE constexpr std::int64_t first_old_key_seen(const Mask& mask,
                                                            const SequenceView& s) {
  std::int64_t first = s.first_new();
  for (std::int64_t i = 0; i < s.q_len; ++i) {
    const KeyRange seen = positions_seen(mask, query_position(s, i), s.kv_len);
    if (seen.begin < first && !seen.empty()) first = seen.begin;
  }
  return first;
}

// May any query of a sequence with a tree mask see key j? `first_old` is first_old_key_seen(): what
// none sees may lie nowhere, so its table entry must not be followed.
QUIRE_HOST_DEVICE constexpr bool is_seen_in_tree(const Mask& mask, const SequenceView& s,
                                                 std::int64_t first_old, std::int64_t j) {
  return j < s.first_new() ? j >= first_old : is_seen(mask, Alignment::kAligned, s, j);
}

// The keys that some query of [first, last) may see. An empty result may begin past kv_len.
QUIRE_HOST_DEVICE constexpr KeyRange keys_seen(const Mask& mask, Alignment alignment,
                                               const SequenceView& s, std::int64_t first,
                                               std::int64_t last) {
  if (first >= last) return {0, 0};
  if (alignment == Alignment::kUnaligned) return {0, s.kv_len};
  if (s.tree_bits != nullptr || s.tree_depths != nullptr) return keys_seen_in_tree(mask, s);
  // Both ends grow with the query, and ranges of neighbours touch, so the union is one range.
  // Leading rows may see nothing (negative positions): their empty ranges begin no later.
  const KeyRange low = positions_seen(mask, query_position(s, first), s.kv_len);
  const KeyRange high = positions_seen(mask, query_position(s, last - 1), s.kv_len);
  const std::int64_t end = high.end;
  return {low.begin < end ? low.begin : end, end};
}

}  // namespace quire
