// SPDX-License-Identifier: Apache-2.0
// Who starts: the choice among those that wait, what must be free for them, and from whom they may
// take it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "quire/scheduler.h"
#include "scheduler/scheduler_state.h"

namespace quire {
namespace {

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
// Waiting requests that are looked up in the prefix cache for one admission: bounds the time of a
// step when many wait for the same block.
constexpr int kMaxLookups = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void Scheduler::State::admit_waiting() {
  while (builder.num_tokens_left() > 0) {
    const std::optional<Choice> next = choose_waiting();
    if (!next) return;
    const bool is_done =
        next->best != next->first && start(next->best, Turn::kLast) == Start::kDone;
    if (!is_done && start_by_force(next->first) != Start::kDone) return;
    if (has_preempted) return;
  }
}

// Those that wait above `next` and above somebody of a lower class who runs. False: whoever is
// first among the waiting has to go on waiting in this step.
bool Scheduler::State::start_before(const RequestRecord& next) {
  while (num_tokens_left() > 0) {
    if (waiting.empty() || records[waiting[0]].rank > next.rank) return true;
    const std::optional<Choice> choice = choose_waiting();
    if (!choice || records[choice->first].rank > next.rank) return true;
    if (!last_holder_below(records[choice->first], Holders::kLowerClass)) return false;
    if (start_over_lower_classes(choice->first) != Start::kDone) return false;
  }
  return false;
}

// Nobody of a lower class is in the batch yet: all of them stand below.
Scheduler::State::Start Scheduler::State::start_over_lower_classes(RequestIndex index) {
  const RequestRecord& request = records[index];
  Start outcome = start(index, Turn::kByRank);
  if (outcome == Start::kDone || outcome == Start::kNextStep || !is_enough(request)) return outcome;
  while (outcome == Start::kBlocked || outcome == Start::kFull) {
    const bool is_full = outcome == Start::kFull;
    const std::optional<RequestIndex> victim =
        last_holder_below(request, is_full ? Holders::kLowerClass : Holders::kPausedAndLowerClass);
    if (!victim) return outcome;
    preempt(*victim, is_full ? 0 : num_entries_for([&](int pool) {
      return num_missing(request, Turn::kByRank, pool);
    }));
    outcome = start(index, Turn::kByRank);
  }
  return outcome;
}

// Would a request that waits have what it needs if everybody gave it up who must? An upper bound,
// since shared blocks do not come free: nobody is preempted if it says no.
bool Scheduler::State::is_enough(const RequestRecord& request) const {
  const auto gives_place = [&](const RequestRecord& other) {
    return other.rank > request.rank && other.priority > request.priority;
  };
  std::int64_t length = running_length + request.final_length();
  for (const RequestIndex index : running) {
    if (gives_place(records[index])) length -= records[index].final_length();
  }
  if (length > options.max_total_length) return false;
  for (int pool = 0; pool < static_cast<int>(num_groups_of.size()); ++pool) {
    std::int64_t num_blocks = num_missing(request, Turn::kByRank, pool);
    for (const RequestIndex index : running) {
      if (num_blocks <= 0) break;
      if (gives_place(records[index])) num_blocks -= num_held(records[index], pool);
    }
    for (const RequestIndex index : paused) {
      if (num_blocks <= 0) break;
      if (records[index].rank > request.rank) num_blocks -= num_held(records[index], pool);
    }
    if (num_blocks > 0) return false;
  }
  return true;
}

// Blocks that others must give back so that it can start.
std::int64_t Scheduler::State::num_missing(const RequestRecord& request, Turn turn,
                                           int pool) const {
  const std::int64_t num_available = manager->num_available_blocks(pool);
  const std::int64_t watermark =
      manager->options().pools[static_cast<std::size_t>(pool)].watermark_blocks;
  switch (request.status) {
    case RequestRecord::Status::kSwapped:
      return manager->num_blocks_to_swap_in(request.sequence, num_wanted(request, turn), pool) +
             watermark - num_available;
    case RequestRecord::Status::kPaused:
      return manager->num_blocks_to_append(request.sequence, num_wanted(request, turn), pool) +
             watermark - num_available;
    default:
      break;
  }
  const AdmitOptions wanted = admit_options(request, num_outstanding(request, turn));
  return manager->num_blocks_to_admit(request.prompt, wanted, pool) + watermark - num_available;
}

// Those below that hold blocks without running must give them up. If nothing at all runs in this
// step, everybody below must, and make room among the running too.
Scheduler::State::Start Scheduler::State::start_by_force(RequestIndex index) {
  const RequestRecord& request = records[index];
  Start outcome = start(index, Turn::kLast);
  while (outcome == Start::kBlocked || outcome == Start::kFull) {
    const bool is_idle = builder.batch().empty();
    const bool is_full = outcome == Start::kFull;
    if (is_full && !is_idle) break;
    const Holders who = is_full ? Holders::kRunning : is_idle ? Holders::kAll : Holders::kPaused;
    const std::optional<RequestIndex> victim = last_holder_below(request, who);
    if (!victim) break;
    preempt(*victim, is_full ? 0 : num_entries_for([&](int pool) {
      return num_missing(request, Turn::kLast, pool);
    }));
    outcome = start(index, Turn::kLast);
  }
  const bool is_alone = running.empty() && paused.size() == paused.contains(index);
  if (outcome != Start::kBlocked || !is_alone || !builder.batch().empty() ||
      request.status == RequestRecord::Status::kWaiting) {
    return outcome;
  }
  begin_anew(index);  // what it holds no longer fits, not even alone: the pool has shrunk
  return start(index, Turn::kLast);
}

void Scheduler::State::begin_anew(RequestIndex index) {
  counters.num_lost_tokens += records[index].num_computed;
  leave_lists(index);
  free_sequence(record(index));
  enter_waiting(index, RequestRecord::Status::kWaiting);
}

// The first by rank, and of the first few the one with the most cached tokens.
std::optional<Scheduler::State::Choice> Scheduler::State::choose_waiting() {
  const PrefixOptions& prefix = options.prefix;
  std::optional<Choice> choice;
  std::int64_t best_cached = 0;
  std::int64_t last_key = 0;
  int num_lookups = 0;
  int num_candidates = 0;
  for (const RequestIndex index : waiting) {
    const RequestRecord& request = records[index];
    if (request.needs_token) continue;
    if (prefix.window == 1 && !prefix.wait_for_shared) return Choice{index, index};
    if (++num_lookups > kMaxLookups || (choice && request.rank.key > last_key)) break;
    const bool is_new = request.status == RequestRecord::Status::kWaiting;
    const std::int64_t num_cached =
        is_new ? manager->num_cached_tokens(request.prompt) : request.num_computed;
    if (is_new && prefix.wait_for_shared && waits_for_shared(request, num_cached)) continue;
    if (!choice) {
      choice = Choice{index, index};
      best_cached = num_cached;
      last_key = request.rank.key + std::max(options.aging_steps - 1, 0);
    } else if (num_cached > best_cached) {
      choice->best = index;
      best_cached = num_cached;
    }
    if (++num_candidates == prefix.window) break;
  }
  return choice;
}

// Is the next block that it misses about to be computed for somebody else?
bool Scheduler::State::waits_for_shared(const RequestRecord& request,
                                        std::int64_t num_cached) const {
  const std::int64_t block = num_cached / block_size;
  if (!request.prompt.is_hashed() || block >= (request.prompt.num_tokens() - 1) / block_size) {
    return false;
  }
  const Digest& key = request.prompt.key(block);
  return std::ranges::any_of(running, [&](RequestIndex index) {
    const RequestRecord& other = records[index];
    return other.num_scheduled > 0 && other.prompt.is_hashed() &&
           other.num_computed < (block + 1) * block_size &&
           block < other.prompt.num_full_blocks() && other.prompt.key(block) == key;
  });
}

Scheduler::State::Start Scheduler::State::start(RequestIndex index, Turn turn) {
  RequestRecord& request = record(index);
  if (!has_room_to_run(request)) return Start::kFull;
  if (!builder.has_room_for_cross(request.num_cross_rows())) return Start::kNextStep;
  if (request.status == RequestRecord::Status::kSwapped && !start_swapped(request, turn)) {
    if (manager->can_swap_in(request.sequence) != AdmitStatus::kNever) return Start::kBlocked;
    begin_anew(index);  // the pool has shrunk
  }
  if (request.status == RequestRecord::Status::kWaiting && !start_new(request, turn)) {
    std::string too_large = why_too_large(request);
    if (too_large.empty()) return Start::kBlocked;
    end(index, FinishReason::kTooLarge, std::move(too_large));  // the pool has shrunk
    return Start::kDone;
  }
  if (request.status == RequestRecord::Status::kPaused && !start_paused(request, turn)) {
    return Start::kBlocked;
  }
  leave_lists(index);
  enter_running(index);
  const std::int64_t num_tokens =
      std::min({request.num_to_compute(), options.max_chunk, num_tokens_left()});
  const bool has_slots = builder.batch().empty() ? append_or_preempt(request, num_tokens)
                                                 : manager->append(request.sequence, num_tokens);
  if (has_slots) add_to_batch(request, num_tokens, 0);
  return Start::kDone;
}

// Tokens that running requests have still to compute after this step, in whole blocks.
std::int64_t Scheduler::State::num_outstanding(const RequestRecord& request, Turn turn) const {
  std::int64_t num_tokens = 0;
  for (const RequestIndex index : running) {
    const RequestRecord& other = records[index];
    if (turn == Turn::kByRank && other.rank > request.rank) break;
    const std::int64_t num_left = other.num_to_compute() - other.num_scheduled;
    num_tokens += round_up(std::max<std::int64_t>(num_left, 0), block_size);
  }
  return num_tokens;
}

// Room for the next token, if there is one, and for num_beside tokens of others.
AdmitOptions Scheduler::State::admit_options(const RequestRecord& request,
                                             std::int64_t num_beside) const {
  const std::int64_t own = request.final_length() - request.num_tokens() > 1 ? 1 : 0;
  return {.num_lookahead = std::min(own + num_beside, kMaxLength - request.prompt.num_tokens()),
          .max_chunk = options.max_chunk,
          .num_cross_tokens = request.num_cross_tokens};
}

bool Scheduler::State::start_new(RequestRecord& request, Turn turn) {
  fold_tokens(request);
  const std::optional<Admission> admission =
      manager->admit(request.prompt, admit_options(request, num_outstanding(request, turn)));
  if (!admission) return false;
  request.sequence = admission->id;
  request.num_computed = admission->num_cached_tokens;
  return true;
}

std::int64_t Scheduler::State::num_wanted(const RequestRecord& request, Turn turn) const {
  return std::min(request.num_to_compute() + num_outstanding(request, turn),
                  kMaxLength - request.num_computed);
}

// As an admission. If nothing else runs, the next chunk is enough: the rest fits when it is alone.
bool Scheduler::State::start_swapped(const RequestRecord& request, Turn turn) {
  const auto has_room = [&](std::int64_t num_tokens) {
    return manager->can_swap_in(request.sequence, num_tokens) == AdmitStatus::kNow;
  };
  const bool may_start =
      has_room(num_wanted(request, turn)) ||
      (builder.batch().empty() && has_room(std::min(request.num_to_compute(), options.max_chunk)));
  return may_start && manager->swap_in(request.sequence);
}

// As start_swapped.
bool Scheduler::State::start_paused(const RequestRecord& request, Turn turn) const {
  const std::int64_t limit = kMaxLength - request.num_computed;
  const std::int64_t num_tokens = std::min(num_wanted(request, turn) + watermark_tokens, limit);
  if (manager->can_append(request.sequence, num_tokens)) return true;
  return builder.batch().empty() &&
         manager->can_append(request.sequence,
                             std::min(request.num_to_compute(), options.max_chunk));
}

// The tokens that were added become part of the prompt, so that their blocks can be found.
void Scheduler::State::fold_tokens(RequestRecord& request) {
  const auto first = static_cast<std::size_t>(request.num_in_prompt);
  if (first == request.new_tokens.size()) return;
  request.prompt = request.prompt.extended(std::span(request.new_tokens).subspan(first));
  request.num_in_prompt = static_cast<std::int64_t>(request.new_tokens.size());
}

}  // namespace quire
