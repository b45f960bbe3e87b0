// SPDX-License-Identifier: Apache-2.0
// Finds two equal slots among those of a batch, in memory that the caller brings.
//
// An open-addressing hash table of indices into the slots. It is sized by the slots at hand, not by
// the bounds, so that a decode step clears little. Not thread-safe.
#pragma once

#include <bit>
#include <cstdint>

#include "quire/tensor.h"

namespace quire {

class SlotSet {
 public:
  // Entries for num_slots slots: a power of two, at most half full.
  static std::int64_t num_entries(std::int64_t num_slots) noexcept {
    const auto wanted = static_cast<std::uint64_t>(num_slots < 8 ? 16 : 2 * num_slots);
    return static_cast<std::int64_t>(std::bit_ceil(wanted));
  }
  static std::int64_t scratch_bytes(std::int64_t max_slots) noexcept {
    return num_entries(max_slots) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }

  // `scratch` [num_entries(slots.size)] is overwritten; slots are on the host.
  SlotSet(std::int32_t* scratch, ArrayView<std::int64_t> slots) noexcept
      : entries_(scratch),
        slots_(slots),
        last_(static_cast<std::uint64_t>(num_entries(slots.size)) - 1),
        shift_(64 - static_cast<int>(std::bit_width(last_))) {
    for (std::uint64_t i = 0; i <= last_; ++i) entries_[i] = kFree;
  }

  // The index that was inserted before with the same slot, or -1.
  // REQUIRES: 0 <= index < slots.size, each index at most once.
  std::int64_t insert(std::int64_t index) noexcept {
    const std::int64_t slot = slots_[index];
    for (std::uint64_t at = home(slot);; at = (at + 1) & last_) {
      if (entries_[at] == kFree) {
        entries_[at] = static_cast<std::int32_t>(index);
        return -1;
      }
      if (slots_[entries_[at]] == slot) return entries_[at];
    }
  }

 private:
  static constexpr std::int32_t kFree = -1;

  // Fibonacci hashing: neighbouring slots, and slots a power of two apart, spread over the table.
  std::uint64_t home(std::int64_t slot) const noexcept {
    return (static_cast<std::uint64_t>(slot) * 0x9E3779B97F4A7C15ULL) >> shift_;
  }

  std::int32_t* entries_;  // [last_ + 1]
  ArrayView<std::int64_t> slots_;
  std::uint64_t last_;
  int shift_;
};

}  // namespace quire
