// SPDX-License-Identifier: Apache-2.0
// Who gives up blocks, how many, and what becomes of it. In which way is decided in preemption.h.
#include "scheduler/preemption.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler_state.h"

namespace quire {
namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

std::optional<RequestIndex> Scheduler::State::last_holder_below(const RequestRecord& request,
                                                                Holders who) const {
  std::optional<RequestIndex> last;
  const auto offer = [&](const RankedList& list, bool lower_class_only) {
    for (std::size_t i = list.size(); i-- > 0;) {
      const RequestRecord& other = records[list[i]];
      if (other.rank <= request.rank) return;
      if (lower_class_only && other.priority <= request.priority) continue;
      if (!last || records[*last].rank < other.rank) last = list[i];
      return;
    }
  };
  if (who == Holders::kPaused || who == Holders::kAll || who == Holders::kPausedAndLowerClass) {
    offer(paused, false);
  }
  if (who == Holders::kRunning || who == Holders::kAll) offer(running, false);
  if (who == Holders::kLowerClass || who == Holders::kPausedAndLowerClass) offer(running, true);
  return last;
}

std::int64_t Scheduler::State::num_held(const RequestRecord& request, int pool) const {
  std::int64_t num_blocks = 0;
  const std::vector<LayerGroup>& groups = manager->options().groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].pool != pool) continue;
    for (const BlockId block : manager->block_table(request.sequence, static_cast<int>(g))) {
      num_blocks += block != kNullBlock;
    }
  }
  return num_blocks;
}

// The calls that may throw come before the lists change.
void Scheduler::State::preempt(RequestIndex index, std::int64_t num_entries) {
  builder.take_copies(*manager);  // blocks of copies that wait would not come free
  RequestRecord& request = record(index);
  if (request.status == RequestRecord::Status::kRunning && request.is_decode()) {
    num_kept_tokens = std::max<std::int64_t>(num_kept_tokens - 1, 0);
  }
  has_preempted = true;
  drop_drafts(request);
  const std::int64_t num_kept =
      std::max<std::int64_t>(divide_up(request.num_computed, block_size) - num_entries, 0) *
      block_size;
  const PreemptionKind kind = choose_preemption(
      options.preemption,
      {.num_computed = request.num_computed,
       .num_to_cut = request.num_computed - num_kept,
       .can_swap = request.num_computed > 0 && manager->can_swap_out(request.sequence)});
  if (kind == PreemptionKind::kSwap) {
    QUIRE_CHECK(manager->swap_out(request.sequence));
    leave_lists(index);
    enter_waiting(index, RequestRecord::Status::kSwapped);
    ++counters.num_swaps;
    return builder.take_copies(*manager);
  }
  leave_lists(index);
  counters.num_lost_tokens += request.num_computed;
  if (kind == PreemptionKind::kPartialRelease) {
    request.num_computed = manager->truncate(request.sequence, num_kept);
    counters.num_lost_tokens -= request.num_computed;
    if (request.num_computed > 0) {
      ++counters.num_partial_releases;
      return enter_waiting(index, RequestRecord::Status::kPaused);
    }
  }
  free_sequence(request);
  ++counters.num_recomputes;
  enter_waiting(index, RequestRecord::Status::kWaiting);
}

}  // namespace quire
