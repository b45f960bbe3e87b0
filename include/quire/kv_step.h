// SPDX-License-Identifier: Apache-2.0
// What a BlockManager hands to one step: the copies that come before it, and the arrays of the
// BatchView that it fills.
#pragma once

#include <cstdint>
#include <span>

#include "quire/kv_cache.h"

namespace quire {

// Copies of one group; host ids and device ids are different spaces.
struct GroupCopies {
  std::span<const BlockCopy> on_device;
  std::span<const BlockCopy> to_host;
  std::span<const BlockCopy> to_device;
  std::span<const BlockCopy> on_host;
};

// In no particular order: no block is both read and written. Valid until the next take_copies.
struct CopyLists {
  std::uint64_t ticket = 0;
  std::int64_t num_copies = 0;
  std::span<const GroupCopies> groups;
};

// Where write_step writes; host memory of the caller. Tables are padded if row_stride > 0, indexed
// if begins are given. Slots lie in the order of the sequences, as the rows of new K and V do.
struct StepArrays {
  std::span<std::int32_t> query_begins{};  // [num_sequences + 1] of appended tokens; optional
  std::span<std::int32_t> kv_lens{};       // [num_sequences]
  std::span<std::int32_t> indices{};       // [num_sequences * row_stride], or [num_blocks]
  std::int64_t row_stride = 0;
  std::span<std::int32_t> begins{};  // [num_sequences + 1]
  std::span<std::int64_t> slots{};   // [num_slots]
};

// How long those arrays must be.
struct StepSizes {
  std::int64_t num_blocks = 0;
  std::int64_t max_blocks = 0;  // of one sequence
  std::int64_t num_slots = 0;
};

}  // namespace quire
