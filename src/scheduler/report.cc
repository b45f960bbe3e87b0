// SPDX-License-Identifier: Apache-2.0
// What can be seen of a scheduler: counts, and whether its state holds together.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "quire/scheduler.h"
#include "scheduler/scheduler_state.h"

namespace quire {

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = state_->counters;
  stats.num_running = static_cast<std::int64_t>(state_->running.size());
  stats.num_paused = static_cast<std::int64_t>(state_->paused.size());
  for (const RequestIndex index : state_->waiting) {
    const RequestRecord::Status status = state_->records[index].status;
    stats.num_waiting += status == RequestRecord::Status::kWaiting;
    stats.num_swapped += status == RequestRecord::Status::kSwapped;
  }
  return stats;
}

void Scheduler::validate() const {
  state_->validate();
}

void Scheduler::State::validate_request(RequestIndex index) const {
  using In = RequestRecord::Status;
  const RequestRecord& request = records[index];
  const auto check = [&](bool holds, const char* what) {
    if (!holds) fail(ErrorCode::kInternal, "request ", request.id().value, ": ", what);
  };
  check(running.contains(index) == (request.status == In::kRunning), "is in the wrong list");
  check(waiting.contains(index) != running.contains(index), "is not in exactly one list");
  check(paused.contains(index) == (request.status == In::kPaused), "is paused or is not");
  const bool has_sequence = request.status != In::kWaiting;
  check(has_sequence == (request.sequence != SequenceId{}), "has a sequence or has none");
  check(request.num_computed <= request.num_tokens(), "has computed more tokens than it has");
  check(!request.needs_token || request.num_scheduled == 0, "is scheduled without a token");
  if (!has_sequence) return check(request.num_computed == 0, "has computed tokens without blocks");
  check(manager->num_tokens(request.sequence) == request.num_computed, "differs from its sequence");
  check(manager->is_swapped(request.sequence) == (request.status == In::kSwapped),
        "is swapped out or is not");
  check(request.num_drafted == 0 || request.needs_token, "has drafts and is not asked");
  check(manager->num_appended(request.sequence) == request.num_scheduled + request.num_drafted,
        "has lost slots");
}

void Scheduler::State::validate() const {
  if (manager == nullptr) return;
  std::int64_t length = 0;
  for (const auto& [id, index] : by_id) {
    if (records[index].id().value != id) {
      fail(ErrorCode::kInternal, "request ", id, " is found as ", records[index].id().value);
    }
    validate_request(index);
    if (records[index].status == RequestRecord::Status::kRunning) {
      length += records[index].final_length();
    }
  }
  QUIRE_CHECK(length == running_length);
  QUIRE_CHECK(by_id.size() == running.size() + waiting.size());
  QUIRE_CHECK(by_id.size() + free_records.size() == records.size());
  QUIRE_CHECK(running.size() <= static_cast<std::size_t>(options.max_sequences));
  QUIRE_CHECK(running_length <= options.max_total_length);
}

}  // namespace quire
