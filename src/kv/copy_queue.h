// SPDX-License-Identifier: Apache-2.0
// Copies that have been decided: first they wait to be taken, then they are under way until their
// ticket is completed. Both blocks of a copy stay pinned all that time.
//
// Copies that wait have no order: a copy from a block that another waiting copy writes reads that
// one's source instead, so that no block is both read and written. For this a block that a waiting
// copy writes carries the number of that copy (from 1) as its note. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/reserve_more.h"
#include "quire/block_manager.h"
#include "quire/kv_ids.h"

namespace quire {

enum class Side : std::uint8_t { kDevice, kHost };

struct PlacedBlock {
  BlockId block = kNullBlock;
  Side side = Side::kDevice;
};

struct PendingCopy {
  PlacedBlock src;
  PlacedBlock dst;
  int group = 0;
};

class CopyQueue {
 public:
  explicit CopyQueue(std::size_t num_groups)
      : lists_(num_groups), counts_(num_groups), spans_(num_groups) {}

  // Room for so many more, so that add does not throw.
  void reserve(std::size_t num_more) { reserve_more(copies_, num_more); }
  // REQUIRES: reserved. Returns the note for the block that is written.
  std::int32_t add(const PendingCopy& copy) noexcept {
    copies_.push_back(copy);
    return static_cast<std::int32_t>(copies_.size() - num_taken_);
  }
  const PendingCopy& waiting(std::int32_t note) const {
    return copies_.at(num_taken_ + static_cast<std::size_t>(note) - 1);
  }

  std::span<const PendingCopy> waiting() const noexcept {
    return std::span(copies_).subspan(num_taken_);
  }
  std::span<const PendingCopy> all() const noexcept { return copies_; }

  // Hands out those that wait, sorted by group and direction. Strong guarantee.
  CopyLists take();
  // How many of the oldest copies the tickets up to this one cover. Throws if it was not handed
  // out.
  std::size_t num_covered(std::uint64_t ticket) const;
  // Forgets the oldest copies, which a ticket covers.
  void pop(std::uint64_t ticket, std::size_t num_copies) noexcept;

 private:
  using Lists = std::array<std::vector<BlockCopy>, 4>;  // by direction: 2 * src side + dst side

  struct Ticket {
    std::uint64_t number = 0;
    std::size_t num_copies = 0;
  };

  std::vector<PendingCopy> copies_;  // oldest first: taken ones, then waiting ones
  std::size_t num_taken_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::vector<Ticket> tickets_;                     // not completed, oldest first
  std::vector<Lists> lists_;                        // [num_groups] of the last take
  std::vector<std::array<std::size_t, 4>> counts_;  // [num_groups] while taking
  std::vector<GroupCopies> spans_;
};

}  // namespace quire
