// SPDX-License-Identifier: Apache-2.0
// The making of a batch: running requests go on, others give up blocks for them, waiting ones
// start.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "base/check.h"
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

const ScheduledBatch& Scheduler::schedule(BlockManager& manager) {
  State& state = *state_;
  state.require_between_steps("schedule");
  require(state.manager == nullptr || state.manager == &manager,
          "schedule: another block manager than in the first step");
  state.manager = &manager;
  state.begin_step();
  state.continue_running();
  if (!state.has_preempted || state.builder.batch().empty()) state.admit_waiting();
  state.builder.finish(manager);
  state.is_in_flight = true;
  return state.builder.batch();
}

void Scheduler::State::begin_step() {
  ++counters.num_steps;
  builder.clear();
  has_preempted = false;
  inbox.drain(submissions, cancels);
  for (Submission& submission : submissions) accept(submission);
  for (const RequestId id : cancels) {
    const auto found = by_id.find(id.value);
    if (found != by_id.end()) end(found->second, FinishReason::kCancelled);
  }
  expire();
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

// By rank. Prefill leaves a token of the budget for everyone behind it that decodes.
void Scheduler::State::continue_running() {
  const auto is_decode = [](const RequestRecord& request) { return request.num_to_compute() == 1; };
  std::int64_t num_decodes = 0;
  for (const RequestIndex index : running) num_decodes += is_decode(records[index]);
  // NOLINTNEXTLINE(modernize-loop-convert): preemption may shorten the list at its end
  for (std::size_t i = 0; i < running.size(); ++i) {
    RequestRecord& request = record(running[i]);
    num_decodes -= is_decode(request);
    const std::int64_t num_tokens = std::min(
        {request.num_to_compute(), options.max_chunk, builder.num_tokens_left() - num_decodes});
    if (num_tokens <= 0 || !builder.has_room_for_cross(request.num_cross_rows())) continue;
    if (append_or_preempt(request, num_tokens)) add_to_batch(request, num_tokens);
  }
}

void Scheduler::State::add_to_batch(RequestRecord& request, std::int64_t num_tokens) {
  request.num_scheduled = num_tokens;
  builder.add(request, num_tokens);
}

// REQUIRES: nobody below `request` is in the batch yet.
bool Scheduler::State::append_or_preempt(const RequestRecord& request, std::int64_t num_tokens) {
  while (!manager->append(request.sequence, num_tokens)) {
    const std::optional<RequestIndex> victim = last_holder_below(request, Holders::kAll);
    if (!victim) return false;
    preempt(*victim, num_entries_missing(request, num_tokens));
  }
  return true;
}

std::optional<RequestIndex> Scheduler::State::last_holder_below(const RequestRecord& request,
                                                                Holders who) const {
  std::optional<RequestIndex> last;
  const auto offer = [&](const RankedList& list) {
    if (list.empty() || records[list.back()].rank <= request.rank) return;
    if (!last || records[*last].rank < records[list.back()].rank) last = list.back();
  };
  if (who != Holders::kRunning) offer(paused);
  if (who != Holders::kPaused) offer(running);
  return last;
}

// Table entries that give enough blocks if nobody shares them; at least one.
std::int64_t Scheduler::State::num_entries_missing(const RequestRecord& request,
                                                   std::int64_t num_tokens) const {
  std::int64_t num_entries = 1;
  for (std::size_t p = 0; p < num_groups_of.size(); ++p) {
    if (num_groups_of[p] == 0) continue;
    const std::int64_t num_blocks =
        manager->num_blocks_to_append(request.sequence, num_tokens, static_cast<int>(p));
    num_entries = std::max(num_entries, round_up(num_blocks, num_groups_of[p]) / num_groups_of[p]);
  }
  return num_entries;
}

void Scheduler::State::preempt(RequestIndex index, std::int64_t num_entries) {
  builder.take_copies(*manager);  // blocks of copies that wait would not come free
  RequestRecord& request = record(index);
  const std::int64_t num_kept =
      std::max<std::int64_t>(round_up(request.num_computed, block_size) / block_size - num_entries,
                             0) *
      block_size;
  const PreemptionKind kind = choose_preemption(
      options.preemption,
      {.num_computed = request.num_computed,
       .num_to_cut = request.num_computed - num_kept,
       .can_swap = request.num_computed > 0 && manager->can_swap_out(request.sequence)});
  has_preempted = true;
  leave_lists(index);
  if (kind == PreemptionKind::kSwap) {
    QUIRE_CHECK(manager->swap_out(request.sequence));
    builder.take_copies(*manager);
    ++counters.num_swaps;
    return enter_waiting(index, RequestRecord::Status::kSwapped);
  }
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

void Scheduler::State::admit_waiting() {
  while (builder.num_tokens_left() > 0) {
    const std::optional<Choice> next = choose_waiting();
    if (!next) return;
    const bool is_done = next->best != next->first && start(next->best) == Start::kDone;
    if (!is_done && start_by_force(next->first) != Start::kDone) return;
    if (has_preempted) return;
  }
}

// Those below that hold blocks without running must give them up. If nothing at all runs in this
// step, everybody below must, and make room among the running too.
Scheduler::State::Start Scheduler::State::start_by_force(RequestIndex index) {
  Start outcome = start(index);
  while (outcome != Start::kDone) {
    const bool is_idle = builder.batch().empty();
    if (outcome == Start::kFull && !is_idle) break;
    const Holders who = outcome == Start::kFull ? Holders::kRunning
                        : is_idle               ? Holders::kAll
                                                : Holders::kPaused;
    const std::optional<RequestIndex> victim = last_holder_below(record(index), who);
    if (!victim) break;
    preempt(*victim, outcome == Start::kFull ? 0 : kMaxLength);
    outcome = start(index);
  }
  return outcome;
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

Scheduler::State::Start Scheduler::State::start(RequestIndex index) {
  RequestRecord& request = record(index);
  if (!has_room_to_run(request) || !builder.has_room_for_cross(request.num_cross_rows())) {
    return Start::kFull;
  }
  if (request.status == RequestRecord::Status::kSwapped && !manager->swap_in(request.sequence)) {
    if (manager->can_swap_in(request.sequence) != AdmitStatus::kNever) return Start::kBlocked;
    leave_lists(index);  // the pool has shrunk: it begins anew, if it can
    free_sequence(request);
    enter_waiting(index, RequestRecord::Status::kWaiting);
  }
  if (request.status == RequestRecord::Status::kWaiting && !start_new(request)) {
    if (manager->can_admit(request.prompt, admit_options(request, 0)) != AdmitStatus::kNever) {
      return Start::kBlocked;
    }
    end(index, FinishReason::kTooLarge);
    return Start::kDone;
  }
  if (request.status == RequestRecord::Status::kPaused && !start_paused(request)) {
    return Start::kBlocked;
  }
  leave_lists(index);
  enter_running(index);
  const std::int64_t num_tokens =
      std::min({request.num_to_compute(), options.max_chunk, builder.num_tokens_left()});
  const bool has_slots = builder.batch().empty() ? append_or_preempt(request, num_tokens)
                                                 : manager->append(request.sequence, num_tokens);
  if (has_slots) add_to_batch(request, num_tokens);
  return Start::kDone;
}

// Tokens that running requests have still to compute after this step, in whole blocks.
std::int64_t Scheduler::State::num_outstanding() const {
  std::int64_t num_tokens = 0;
  for (const RequestIndex index : running) {
    const RequestRecord& request = records[index];
    num_tokens += round_up(request.num_to_compute() - request.num_scheduled, block_size);
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

bool Scheduler::State::start_new(RequestRecord& request) {
  fold_tokens(request);
  const std::optional<Admission> admission =
      manager->admit(request.prompt, admit_options(request, num_outstanding()));
  if (!admission) return false;
  request.sequence = admission->id;
  request.num_computed = admission->num_cached_tokens;
  return true;
}

// As an admission. If nothing else runs, the next chunk is enough: the rest fits when it is alone.
bool Scheduler::State::start_paused(const RequestRecord& request) const {
  const std::int64_t num_wanted = request.num_to_compute() + num_outstanding() + watermark_tokens;
  const std::int64_t limit = kMaxLength - request.num_computed;
  if (manager->can_append(request.sequence, std::min(num_wanted, limit))) return true;
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
