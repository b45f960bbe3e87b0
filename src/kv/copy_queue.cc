// SPDX-License-Identifier: Apache-2.0
#include "kv/copy_queue.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

std::size_t direction_of(const PendingCopy& copy) noexcept {
  return 2 * static_cast<std::size_t>(copy.src.side) + static_cast<std::size_t>(copy.dst.side);
}

}  // namespace

CopyLists CopyQueue::take() {
  reserve_more(tickets_, 1);
  std::ranges::fill(counts_, std::array<std::size_t, 4>{});
  for (const PendingCopy& copy : waiting()) {
    ++counts_[static_cast<std::size_t>(copy.group)][direction_of(copy)];
  }
  for (std::size_t group = 0; group < lists_.size(); ++group) {
    for (std::size_t direction = 0; direction < 4; ++direction) {
      lists_[group][direction].reserve(counts_[group][direction]);
    }
  }
  // From here on nothing throws.
  for (Lists& lists : lists_) {
    for (std::vector<BlockCopy>& list : lists) list.clear();
  }
  CopyLists taken;
  for (const PendingCopy& copy : waiting()) {
    lists_[static_cast<std::size_t>(copy.group)][direction_of(copy)].push_back(
        {.src = copy.src.block, .dst = copy.dst.block});
    ++taken.num_copies;
  }
  for (std::size_t group = 0; group < lists_.size(); ++group) {
    const Lists& lists = lists_[group];
    spans_[group] = {
        .on_device = lists[0], .to_host = lists[1], .to_device = lists[2], .on_host = lists[3]};
  }
  taken.ticket = ++last_ticket_;
  taken.groups = spans_;
  if (taken.num_copies > 0) {
    tickets_.push_back({.number = taken.ticket, .num_copies = copies_.size() - num_taken_});
  }
  num_taken_ = copies_.size();
  return taken;
}

std::size_t CopyQueue::num_covered(std::uint64_t ticket) const {
  require(ticket >= 1 && ticket <= last_ticket_, "ticket ", ticket,
          " of copies was never handed out, the last is ", last_ticket_);
  std::size_t num_copies = 0;
  for (const Ticket& open : tickets_) {
    if (open.number <= ticket) num_copies += open.num_copies;
  }
  return num_copies;
}

void CopyQueue::pop(std::uint64_t ticket, std::size_t num_copies) noexcept {
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(num_copies));
  num_taken_ -= num_copies;
  std::erase_if(tickets_, [&](const Ticket& open) { return open.number <= ticket; });
}

}  // namespace quire
