// SPDX-License-Identifier: Apache-2.0
// The making of a batch: what other threads asked for, then the requests that run, by rank.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/check.h"
#include "kv/reserve_more.h"
#include "quire/scheduler.h"
#include "scheduler/scheduler_state.h"

namespace quire {

const ScheduledBatch& Scheduler::schedule(BlockManager& manager) {
  State& state = *state_;
  state.require_between_steps("schedule");
  require(state.manager == nullptr || state.manager == &manager,
          "schedule: another block manager than in the first step");
  state.manager = &manager;
  ++state.counters.num_steps;
  try {
    state.begin_step();
    state.continue_running();
    if (!state.has_preempted || state.builder.batch().empty()) state.admit_waiting();
    state.builder.finish(manager);
  } catch (...) {
    state.undo_schedule();
    throw;
  }
  state.is_in_flight = true;
  return state.builder.batch();
}

void Scheduler::State::begin_step() {
  builder.clear();
  has_preempted = false;
  if (has_failed) builder.take_copies(*manager);  // their blocks would not come free
  has_failed = false;
  accept_all();  // what a step that ran out of memory has left
  inbox.drain(submissions, cancels);
  accept_all();
  expire();
  reported.clear();
  reserve_more(reported, by_id.size());
}

void Scheduler::State::accept_all() {
  for (; num_accepted < submissions.size(); ++num_accepted) accept(submissions[num_accepted]);
  submissions.clear();
  num_accepted = 0;
  for (const RequestId id : cancels) {
    const auto found = by_id.find(id.value);
    if (found != by_id.end()) end(found->second, FinishReason::kCancelled);
  }
  cancels.clear();
}

void Scheduler::State::expire() {
  if (deadlines.empty()) return;
  const std::chrono::nanoseconds now = options.clock();
  while (!deadlines.empty() && deadlines.front().time <= now) {
    const auto found = by_id.find(deadlines.front().id.value);
    if (found != by_id.end()) end(found->second, FinishReason::kDeadline);
    std::ranges::pop_heap(deadlines, std::greater<>());
    deadlines.pop_back();
  }
}

// No token is scheduled, and the same step comes again. Preemptions and admissions stand: they
// change who holds blocks, not what a request has.
void Scheduler::State::undo_schedule() {
  for (const ScheduledSequence& scheduled : builder.batch().sequences()) {
    manager->rollback(scheduled.sequence, scheduled.num_tokens);
    record(by_id.at(scheduled.request.value)).num_scheduled = 0;
  }
  builder.clear();
  has_failed = true;
  --counters.num_steps;
}

// By rank, and those that wait in their turn where a lower class runs. Prefill leaves a token of
// the budget for everyone behind it that decodes.
void Scheduler::State::continue_running() {
  num_kept_tokens = 0;
  for (const RequestIndex index : running) num_kept_tokens += records[index].is_decode();
  bool may_start = options.preemption.allow_for_waiting;
  for (std::size_t i = 0; i < running.size(); ++i) {
    // Who starts comes to stand at i; who gives up blocks leaves the end of the list.
    if (may_start) may_start = start_before(records[running[i]]);
    if (i < running.size()) continue_one(running[i]);
  }
  num_kept_tokens = 0;
}

void Scheduler::State::continue_one(RequestIndex index) {
  RequestRecord& request = record(index);
  if (request.num_scheduled > 0) return;  // it has just started
  if (request.is_decode() && num_kept_tokens > 0) --num_kept_tokens;
  const std::int64_t num_tokens =
      std::min({request.num_to_compute(), options.max_chunk, num_tokens_left()});
  if (num_tokens <= 0 || !builder.has_room_for_cross(request.num_cross_rows())) return;
  const std::int64_t num_drafts = num_drafts_for(request, num_tokens);
  if (num_drafts > 0 && manager->append(request.sequence, num_tokens + num_drafts)) {
    return add_to_batch(request, num_tokens, num_drafts);
  }
  if (append_or_preempt(request, num_tokens)) return add_to_batch(request, num_tokens, 0);
  if (running.size() + paused.size() > 1) return;  // others will give back blocks
  builder.take_copies(*manager);                   // so do copies
  if (manager->append(request.sequence, num_tokens)) return add_to_batch(request, num_tokens, 0);
  end(index, FinishReason::kTooLarge, why_too_large(request));  // the pool has shrunk
}

// Guesses follow the last token, and nobody gives up anything for them.
std::int64_t Scheduler::State::num_drafts_for(const RequestRecord& request,
                                              std::int64_t num_tokens) const {
  if (num_tokens < request.num_to_compute()) return 0;
  const std::int64_t limit = std::min(options.max_chunk, num_tokens_left()) - num_tokens;
  return std::clamp<std::int64_t>(limit, 0, std::ssize(request.drafts));
}

void Scheduler::State::add_to_batch(RequestRecord& request, std::int64_t num_tokens,
                                    std::int64_t num_drafts) {
  request.num_scheduled = num_tokens + num_drafts;
  builder.add(request, num_tokens + num_drafts, num_drafts);
}

// REQUIRES: nobody below `request` is in the batch yet.
bool Scheduler::State::append_or_preempt(const RequestRecord& request, std::int64_t num_tokens) {
  while (!manager->append(request.sequence, num_tokens)) {
    const std::optional<RequestIndex> victim = last_holder_below(request, Holders::kAll);
    if (!victim) return false;
    preempt(*victim, num_entries_for([&](int pool) {
      return manager->num_blocks_to_append(request.sequence, num_tokens, pool) -
             manager->num_available_blocks(pool);
    }));
  }
  return true;
}

}  // namespace quire
