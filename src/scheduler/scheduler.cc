// SPDX-License-Identifier: Apache-2.0
// Requests: how they come in, grow, become two and end; and what a finished step means for them.
#include "quire/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "kv/reserve_more.h"
#include "scheduler/scheduler_state.h"

namespace quire {
namespace {

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
// New tokens of a request for which memory is taken when it comes: 128 KiB at most.
constexpr std::int64_t kMaxReservedTokens = 32768;

void require_positive(const char* name, std::int64_t value) {
  require(value >= 1 && value <= kMaxLength, name, " must be between 1 and ", kMaxLength, ", is ",
          value);
}

void require_not_negative(const char* name, std::int64_t value) {
  require(value >= 0, name, " must not be negative, is ", value);
}

// Every limit that was left open becomes a number.
SchedulerOptions complete(SchedulerOptions options) {
  require_positive("max_tokens", options.max_tokens);
  require_positive("max_sequences", options.max_sequences);
  require(options.max_tokens >= options.max_sequences,
          "max_tokens must be at least max_sequences, so that all that run can decode; they are ",
          options.max_tokens, " and ", options.max_sequences);
  require_not_negative("max_chunk", options.max_chunk);
  require_not_negative("max_cross_tokens", options.max_cross_tokens);
  require_not_negative("max_length", options.max_length);
  require_not_negative("max_total_length", options.max_total_length);
  require_not_negative("aging_steps", options.aging_steps);
  require_positive("prefix.window", options.prefix.window);
  const PreemptionOptions& costs = options.preemption;
  require(costs.token_seconds >= 0 && costs.key_seconds >= 0 && costs.byte_seconds >= 0 &&
              costs.token_bytes >= 0,
          "costs of preemption must not be negative, are ", costs.token_seconds, ", ",
          costs.key_seconds, ", ", costs.byte_seconds, ", ", costs.token_bytes);
  const auto or_else = [](std::int64_t& value, std::int64_t other) {
    if (value == 0) value = other;
  };
  or_else(options.max_chunk, options.max_tokens);
  options.max_chunk = std::min(options.max_chunk, options.max_tokens);
  or_else(options.max_cross_tokens, options.max_tokens);
  or_else(options.max_length, kMaxLength);
  or_else(options.max_total_length, std::numeric_limits<std::int64_t>::max());
  if (!options.clock) {
    options.clock = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  }
  return options;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopped:
      return "stopped";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kTooLarge:
      return "too large";
  }
  return "unknown";
}

Scheduler::State::State(const SchedulerOptions& options_, const BlockManagerOptions& blocks)
    : options(complete(options_)),
      block_size(blocks.block_size),
      num_groups_of(blocks.pools.size(), 0),
      running(records),
      waiting(records),
      paused(records),
      builder({.max_tokens = options.max_tokens,
               .max_sequences = options.max_sequences,
               .max_cross_rows = options.max_cross_tokens},
              blocks.groups.size()) {
  ready.reserve(static_cast<std::size_t>(options.max_sequences));
  require(block_size >= 1, "block_size must be at least 1, is ", block_size);
  for (const LayerGroup& group : blocks.groups) {
    const bool is_cross = group.alignment == Alignment::kUnaligned;
    has_cross_group = has_cross_group || is_cross;
    if (!is_cross) ++num_groups_of.at(static_cast<std::size_t>(group.pool));
  }
  for (const BlockPoolOptions& pool : blocks.pools) {
    watermark_tokens = std::max(watermark_tokens, pool.watermark_blocks * block_size);
  }
}

Scheduler::Scheduler(const SchedulerOptions& options, const BlockManagerOptions& blocks)
    : state_(std::make_unique<State>(options, blocks)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

const SchedulerOptions& Scheduler::options() const noexcept {
  return state_->options;
}
std::int64_t Scheduler::num_unfinished() const {
  return state_->inbox.num_unfinished();
}
void Scheduler::cancel(RequestId id) {
  state_->inbox.cancel(id);
}

RequestId Scheduler::submit(Request request) {
  const std::int64_t length = request.prompt.num_tokens();
  require(length >= 1, "a prompt needs at least one token");
  require(request.prompt.block_size() == state_->block_size, "the prompt was made for blocks of ",
          request.prompt.block_size(), " tokens, the cache has blocks of ", state_->block_size);
  require(request.max_new_tokens >= 0 && request.max_new_tokens <= kMaxLength - length,
          "max_new_tokens must be between 0 and ", kMaxLength - length, ", is ",
          request.max_new_tokens);
  require(request.num_cross_tokens >= 0 && request.num_cross_tokens <= kMaxLength,
          "num_cross_tokens must be between 0 and ", kMaxLength, ", is ", request.num_cross_tokens);
  require(state_->has_cross_group || request.num_cross_tokens == 0,
          "there is no group for cross-attention, but num_cross_tokens is ",
          request.num_cross_tokens);
  return state_->inbox.submit(std::move(request));
}

RequestIndex Scheduler::State::index_of(RequestId id) const {
  const auto found = by_id.find(id.value);
  require(found != by_id.end(), "request ", id.value, " has ended, or no step has seen it yet");
  return found->second;
}

void Scheduler::State::require_between_steps(const char* call) const {
  require(!is_in_flight, call, ": not between schedule and commit");
}

// A free record, and room in every list for all records, so that moving requests never throws.
RequestIndex Scheduler::State::make_record() {
  reserve_more(finished, by_id.size() + 1);
  if (free_records.empty()) {
    for (RankedList* list : {&running, &waiting, &paused}) list->reserve(records.size() + 1);
    if (free_records.capacity() <= records.size()) free_records.reserve(2 * records.size() + 16);
    records.emplace_back();
    free_records.push_back(static_cast<RequestIndex>(records.size() - 1));
  }
  return free_records.back();
}

void Scheduler::State::accept(Submission& submission) {
  const RequestIndex index = make_record();
  Request& request = submission.request;
  RequestRecord& made = record(index);
  const std::int64_t key =
      options.aging_steps == 0
          ? request.priority
          : static_cast<std::int64_t>(request.priority) * options.aging_steps + counters.num_steps;
  made.rank = {.key = key, .id = submission.id};
  made.priority = request.priority;
  made.prompt = request.prompt;
  made.max_new_tokens = request.max_new_tokens;
  made.num_cross_tokens = request.num_cross_tokens;
  made.deadline = request.deadline;
  made.new_tokens.reserve(
      static_cast<std::size_t>(std::min(request.max_new_tokens, kMaxReservedTokens)));
  reserve_more(deadlines, 1);
  std::string too_large = why_too_large(made);
  by_id.emplace(submission.id.value, index);
  // From here on nothing throws.
  add_deadline(made);
  free_records.pop_back();
  ++counters.num_submitted;
  enter_waiting(index, RequestRecord::Status::kWaiting);
  if (!too_large.empty()) end(index, FinishReason::kTooLarge, std::move(too_large));
}

// The last token that is added is never computed.
std::string Scheduler::State::why_too_large(const RequestRecord& request) const {
  const auto size = [this](std::int64_t num_tokens) {
    const double bytes = static_cast<double>(num_tokens) *  // may be beyond 64 bits
                         static_cast<double>(options.preemption.token_bytes);
    std::ostringstream text;
    text << num_tokens << (num_tokens == 1 ? " token, " : " tokens, ") << std::fixed
         << std::setprecision(0) << bytes << " bytes";
    return text.str();
  };
  const std::int64_t limit = std::min(options.max_length, options.max_total_length);
  if (request.final_length() > limit) {
    return concat("may come to ", size(request.final_length()), " of K and V; the limit is ",
                  size(limit));
  }
  if (request.num_cross_tokens > options.max_cross_tokens) {
    return concat("its encoder has ", request.num_cross_tokens, " tokens; a step takes at most ",
                  options.max_cross_tokens);
  }
  const std::int64_t num_added =
      std::max<std::int64_t>(request.final_length() - request.prompt.num_tokens() - 1, 0);
  const AdmitOptions all{.num_lookahead = num_added,
                         .max_chunk = options.max_chunk,
                         .num_cross_tokens = request.num_cross_tokens};
  if (manager->can_admit(request.prompt, all) != AdmitStatus::kNever) return {};
  return concat("needs ", size(request.prompt.num_tokens() + num_added),
                " of K and V; alone in the cache it would find ",
                size(max_tokens_alone(request.num_cross_tokens)));
}

std::int64_t Scheduler::State::max_tokens_alone(std::int64_t num_cross_tokens) const {
  const Token any = 0;
  const Prompt one = Prompt::unhashed(std::span(&any, 1), static_cast<int>(block_size));
  const auto fits = [&](std::int64_t num_tokens) {
    const AdmitOptions all{.num_lookahead = num_tokens - 1,
                           .max_chunk = options.max_chunk,
                           .num_cross_tokens = num_cross_tokens};
    return manager->can_admit(one, all) != AdmitStatus::kNever;
  };
  std::int64_t most = 0;
  std::int64_t too_many = kMaxLength;
  while (too_many - most > 1) {
    const std::int64_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

void Scheduler::State::add_deadline(const RequestRecord& request) {
  if (!request.deadline) return;
  deadlines.push_back({.time = *request.deadline, .id = request.id()});
  std::ranges::push_heap(deadlines, std::greater<>());
}

void Scheduler::State::leave_lists(RequestIndex index) {
  const RequestRecord& request = records[index];
  if (request.status == RequestRecord::Status::kRunning) {
    running.erase(index);
    running_length -= request.final_length();
    return;
  }
  waiting.erase(index);
  if (request.status == RequestRecord::Status::kPaused) paused.erase(index);
}

void Scheduler::State::enter_running(RequestIndex index) {
  record(index).status = RequestRecord::Status::kRunning;
  running.insert(index);
  running_length += records[index].final_length();
}

void Scheduler::State::enter_waiting(RequestIndex index, RequestRecord::Status status) {
  record(index).status = status;
  waiting.insert(index);
  if (status == RequestRecord::Status::kPaused) paused.insert(index);
}

bool Scheduler::State::has_room_to_run(const RequestRecord& request) const {
  return running.size() < static_cast<std::size_t>(options.max_sequences) &&
         request.final_length() <= options.max_total_length - running_length;
}

void Scheduler::State::free_sequence(RequestRecord& request) {
  if (request.sequence == SequenceId{}) return;
  manager->free(request.sequence);
  request.sequence = {};
  request.num_computed = 0;
  request.cross_is_stored = false;
}

void Scheduler::State::end(RequestIndex index, FinishReason reason, std::string detail) {
  RequestRecord& request = record(index);
  finished.push_back({.id = request.id(),
                      .reason = reason,
                      .num_new_tokens = static_cast<std::int64_t>(request.new_tokens.size()),
                      .detail = std::move(detail)});
  free_sequence(request);
  leave_lists(index);
  by_id.erase(request.id().value);
  // Their memory serves the next request.
  std::vector<Token> tokens = std::move(request.new_tokens);
  std::vector<Token> drafts = std::move(request.drafts);
  tokens.clear();
  drafts.clear();
  request = {};
  request.new_tokens = std::move(tokens);
  request.drafts = std::move(drafts);
  free_records.push_back(index);
  ++counters.num_finished[static_cast<std::size_t>(reason)];
  inbox.note_end();
}

void Scheduler::extend(RequestId id, std::span<const Token> tokens, std::span<const Token> drafts) {
  State& state = *state_;
  state.require_between_steps("extend");
  const RequestIndex index = state.index_of(id);
  RequestRecord& request = state.record(index);
  require(request.needs_token, "request ", id.value, " is not ready for a token");
  const std::int64_t left =
      request.max_new_tokens - static_cast<std::int64_t>(request.new_tokens.size());
  require(!tokens.empty() && std::ssize(tokens) <= left, "request ", id.value,
          " can take between 1 and ", left, " tokens, not ", tokens.size());
  // The last token that may come is never computed, so that no draft stands for it.
  const std::int64_t num_drafts =
      std::clamp<std::int64_t>(left - std::ssize(tokens) - 1, 0, std::ssize(drafts));
  reserve_more(request.new_tokens, tokens.size());
  request.drafts.reserve(static_cast<std::size_t>(num_drafts));
  state.settle_drafts(request, tokens);
  // From here on nothing throws.
  request.new_tokens.insert(request.new_tokens.end(), tokens.begin(), tokens.end());
  request.drafts.assign(drafts.begin(), drafts.begin() + num_drafts);
  request.needs_token = false;
  if (std::ssize(tokens) == left) state.end(index, FinishReason::kLength);
}

// The last of the tokens is computed in any case: its row decides the next one.
void Scheduler::State::settle_drafts(RequestRecord& request, std::span<const Token> tokens) {
  if (request.num_drafted == 0) return;
  const auto limit = std::min(static_cast<std::size_t>(request.num_drafted), tokens.size() - 1);
  std::size_t num_equal = 0;
  while (num_equal < limit && tokens[num_equal] == request.drafts[num_equal]) ++num_equal;
  if (num_equal > 0) {
    builder.take_copies(*manager);  // a step that ran out of memory may have left some
    manager->commit(request.sequence, tokens.first(num_equal));
  }
  const auto num_kept = static_cast<std::int64_t>(num_equal);
  request.num_computed += num_kept;
  request.num_drafted -= num_kept;
  counters.num_accepted_drafts += num_kept;
  drop_drafts(request);
}

void Scheduler::State::drop_drafts(RequestRecord& request) {
  if (request.num_drafted > 0) manager->rollback(request.sequence, request.num_drafted);
  request.num_drafted = 0;
  request.drafts.clear();
}

void Scheduler::finish(RequestId id) {
  state_->require_between_steps("finish");
  state_->end(state_->index_of(id), FinishReason::kStopped);
}

// Where the request has no blocks on the device, its second self finds what the prefix cache has.
RequestId Scheduler::fork(RequestId id) {
  constexpr std::uint64_t kNoId = 0;
  State& state = *state_;
  state.require_between_steps("fork");
  RequestRecord& parent = state.record(state.index_of(id));
  const RequestIndex index = state.make_record();
  RequestRecord child = parent;
  child.new_tokens.reserve(parent.new_tokens.capacity());
  child.drafts.clear();
  child.num_drafted = 0;
  child.sequence = {};
  if (!parent.holds_blocks()) {
    child.num_computed = 0;
    child.cross_is_stored = false;
  }
  reserve_more(state.deadlines, 1);
  state.by_id.reserve(state.by_id.size() + 1);
  const auto place = state.by_id.emplace(kNoId, index).first;  // until the id is known
  try {
    state.drop_drafts(parent);  // guesses: what they were for is computed again
    if (parent.holds_blocks()) child.sequence = state.manager->fork(parent.sequence);
  } catch (...) {
    state.by_id.erase(place);
    throw;
  }
  // From here on nothing throws.
  child.rank.id = state.inbox.take_id();
  auto node = state.by_id.extract(place);
  node.key() = child.id().value;
  state.by_id.insert(std::move(node));
  state.add_deadline(child);
  state.record(index) = std::move(child);
  state.free_records.pop_back();
  ++state.counters.num_submitted;
  const RequestRecord& made = state.record(index);
  if (!parent.holds_blocks()) {
    state.enter_waiting(index, RequestRecord::Status::kWaiting);
  } else if (parent.status == RequestRecord::Status::kRunning && state.has_room_to_run(made)) {
    state.enter_running(index);
  } else {
    state.enter_waiting(index, RequestRecord::Status::kPaused);
  }
  return made.id();
}

std::span<const Token> Scheduler::new_tokens(RequestId id) const {
  return state_->records[state_->index_of(id)].new_tokens;
}

void Scheduler::State::commit(const ScheduledSequence& scheduled) {
  const RequestIndex index = by_id.at(scheduled.request.value);
  RequestRecord& request = record(index);
  const std::int64_t num_own = scheduled.num_tokens - scheduled.num_drafts;
  const RequestRecord::Runs runs = request.tokens(request.num_computed, num_own);
  if (!runs.in_prompt.empty()) {
    manager->commit_prompt(request.sequence, static_cast<std::int64_t>(runs.in_prompt.size()));
  }
  if (!runs.behind.empty()) manager->commit(request.sequence, runs.behind);
  request.num_computed += num_own;
  request.num_scheduled = 0;
  request.num_drafted = scheduled.num_drafts;
  counters.num_drafts += scheduled.num_drafts;
  request.cross_is_stored = request.num_cross_tokens > 0;
  if (request.num_to_compute() > 0) return;
  if (request.max_new_tokens == 0) return end(index, FinishReason::kLength);
  request.needs_token = true;
  ready.push_back({.id = request.id(),
                   .row = scheduled.first_row + num_own - 1,
                   .num_drafts = scheduled.num_drafts});
}

StepResult Scheduler::commit(const ScheduledBatch& batch) {
  State& state = *state_;
  require(state.is_in_flight && &batch == &state.builder.batch(),
          "commit: not the batch of the last schedule, or done with already");
  state.ready.clear();
  for (const ScheduledSequence& scheduled : batch.sequences()) state.commit(scheduled);
  state.is_in_flight = false;
  state.builder.note_run(batch.copies().size());
  state.counters.num_tokens += batch.num_tokens();
  state.reported.clear();
  state.reported.swap(state.finished);
  return {.num_tokens = batch.num_tokens(),
          .num_sequences = static_cast<std::int64_t>(batch.sequences().size()),
          .ready = state.ready,
          .finished = state.reported};
}

bool Scheduler::has_batch() const noexcept {
  return state_->is_in_flight;
}

void Scheduler::abandon(const ScheduledBatch& batch, std::size_t num_stages) {
  State& state = *state_;
  require(state.is_in_flight && &batch == &state.builder.batch(),
          "abandon: not the batch of the last schedule, or done with already");
  require(num_stages <= batch.copies().size(), "abandon: the batch has ", batch.copies().size(),
          " stages of copies, not ", num_stages);
  state.builder.note_run(num_stages);
  for (const ScheduledSequence& scheduled : batch.sequences()) {
    state.manager->rollback(scheduled.sequence, scheduled.num_tokens);
    state.record(state.by_id.at(scheduled.request.value)).num_scheduled = 0;
  }
  --state.counters.num_steps;
  state.is_in_flight = false;
}

}  // namespace quire
