// SPDX-License-Identifier: Apache-2.0
#include "model/scheduler_run.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace quire::test {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace

SchedulerRun::SchedulerRun(std::uint32_t seed, Attempt attempt)
    : random_(seed),
      attempt_(std::move(attempt)),
      blocks_(random_blocks()),
      options_(random_options()),
      manager_(blocks_),
      scheduler_(options_, blocks_),
      cache_(blocks_) {}

std::string SchedulerRun::play() {
  const int num_busy_steps = pick(5, 60);
  for (int i = 0; i < num_busy_steps; ++i) {
    for (int j = pick(0, 3); j > 0; --j) submit();
    if (pick(0, 9) == 0) cancel();
    step();
  }
  for (int i = 0; i < 5000 && !alive_.empty(); ++i) step();
  expect(scheduler_.num_unfinished() == 0, "requests are left after 5000 quiet steps");
  check_end();
  return text_.str();
}

BlockManagerOptions SchedulerRun::random_blocks() {
  BlockManagerOptions blocks;
  blocks.block_size = pick(1, 5);
  const int num_pools = pick(1, 2);
  for (int i = 0; i < num_pools; ++i) {
    blocks.pools.push_back({.num_blocks = pick(6, 40),
                            .num_host_blocks = chance(50) ? pick(2, 30) : 0,
                            .watermark_blocks = chance(30) ? pick(1, 3) : 0});
  }
  const int num_groups = std::max(num_pools, pick(1, 3));
  for (int i = 0; i < num_groups; ++i) {
    LayerGroup group;
    group.pool = i % num_pools;
    if (chance(30)) group.mask.window_left = pick(0, 9);
    blocks.groups.push_back(group);
  }
  blocks.prefix_cache = chance(70);
  blocks.share_tails = chance(30);
  blocks.validate_interval = 0;
  return blocks;
}

SchedulerOptions SchedulerRun::random_options() {
  SchedulerOptions options;
  options.max_sequences = pick(1, 6);
  options.max_tokens = options.max_sequences + pick(0, 30);
  options.max_chunk = chance(30) ? pick(1, 8) : 0;
  options.max_length = chance(20) ? pick(10, 60) : 0;
  options.max_total_length =
      chance(20) ? std::max<std::int64_t>(options.max_length, pick(60, 200)) : 0;
  options.aging_steps = pick(1, 12);
  options.prefix = {.window = chance(30) ? pick(2, 4) : 1, .wait_for_shared = chance(30)};
  options.preemption.allow_partial = chance(60);
  options.preemption.allow_swap = chance(60);
  options.preemption.allow_for_waiting = chance(70);
  options.preemption.byte_seconds = chance(50) ? 0 : 1e-9;
  options.clock = [this] { return std::chrono::nanoseconds(num_steps_); };
  return options;
}

void SchedulerRun::call(const char* name, const std::function<void()>& what, bool keeps_blocks) {
  if (!attempt_) return what();
  const auto dump_all = [&] { return dump() + (keeps_blocks ? manager_.dump() : std::string()); };
  const std::string before = dump_all();
  attempt_(name, what, [&] {
    expect(dump_all() == before, std::string(name) + " has failed and changed something");
    scheduler_.validate();
    manager_.validate();
  });
}

void SchedulerRun::call_schedule(const std::function<void()>& what) {
  if (!attempt_) return what();
  const std::int64_t num_unfinished = scheduler_.num_unfinished();
  const SchedulerStats before = scheduler_.stats();
  attempt_("schedule", what, [&] {
    scheduler_.validate();
    manager_.validate();
    const SchedulerStats stats = scheduler_.stats();
    expect(!scheduler_.has_batch(), "a failed schedule has left a batch");
    expect(stats.num_steps == before.num_steps, "a failed schedule counts as a step");
    std::int64_t num_ended = 0;
    for (std::size_t i = 0; i < stats.num_finished.size(); ++i) {
      num_ended += stats.num_finished[i] - before.num_finished[i];
    }
    expect(scheduler_.num_unfinished() + num_ended == num_unfinished,
           "a failed schedule has lost a request");
  });
}

// All that can be seen of the scheduler.
std::string SchedulerRun::dump() const {
  std::ostringstream out;
  const SchedulerStats stats = scheduler_.stats();
  out << scheduler_.num_unfinished() << ' ' << stats.num_submitted << ' ' << stats.num_waiting
      << ' ' << stats.num_running << ' ' << stats.num_paused << ' ' << stats.num_swapped << ' '
      << stats.num_tokens << ' ' << stats.num_accepted_drafts << ' ' << scheduler_.has_batch();
  for (const auto& [id, known] : alive_) {
    out << '\n' << id.value;
    try {
      for (const Token token : scheduler_.new_tokens(id)) out << ' ' << token;
    } catch (const Error&) {
      out << " unknown";
    }
  }
  return out.str();
}

void SchedulerRun::submit() {
  Known known;
  const int length = pick(1, chance(10) ? 60 : 20);
  const int shared = chance(50) ? pick(0, length) : 0;
  for (int i = 0; i < length; ++i) {
    known.tokens.push_back(static_cast<Token>(i < shared ? i : pick(0, 1000)));
  }
  known.num_prompt = length;
  known.max_new = pick(0, 12);
  const int priority = pick(-1, 3);
  if (chance(10)) known.deadline = num_steps_ + pick(0, 20);
  // It is seen by the next step.
  known.rank_key = std::int64_t{priority} * options_.aging_steps + num_steps_ + 1;
  Request request{.prompt = Prompt(known.tokens, blocks_.block_size),
                  .max_new_tokens = known.max_new,
                  .priority = priority};
  if (known.deadline >= 0) request.deadline = std::chrono::nanoseconds(known.deadline);
  RequestId id;
  call("submit", [&] { id = scheduler_.submit(request); });
  alive_[id] = known;
}

void SchedulerRun::cancel() {
  if (alive_.empty()) return;
  auto chosen = alive_.begin();
  std::advance(chosen, pick(0, static_cast<int>(alive_.size()) - 1));
  chosen->second.is_cancelled = true;
  call("cancel", [&] { scheduler_.cancel(chosen->first); });
}

void SchedulerRun::step() {
  const ScheduledBatch* scheduled = nullptr;
  call_schedule([&] { scheduled = &scheduler_.schedule(manager_); });
  const ScheduledBatch& batch = *scheduled;
  ++num_steps_;
  scheduler_.validate();
  manager_.validate();
  check_batch(batch);
  if (chance(3)) {
    const auto num_stages =
        static_cast<std::size_t>(pick(0, static_cast<int>(batch.copies().size())));
    cache_.copy(batch, num_stages);
    if (num_stages == batch.copies().size()) cache_.store_garbage(batch);
    scheduler_.abandon(batch, num_stages);
    --num_steps_;
    text_ << "abandoned\n";
    scheduler_.validate();
    manager_.validate();
    return;
  }
  cache_.copy(batch, batch.copies().size());
  cache_.store(batch);
  cache_.check(batch, [this](const ScheduledSequence& sequence) -> std::span<const Token> {
    return in_batch_.at(sequence.request);
  });
  std::vector<RequestId> could_run = runnable();
  std::vector<RequestId> ran;
  for (const ScheduledSequence& sequence : batch.sequences()) ran.push_back(sequence.request);
  StepResult result;
  call("commit", [&] { result = scheduler_.commit(batch); });
  check_progress(std::move(could_run), result.finished, ran);
  take_result(result);
  manager_.validate();
  answer();
  scheduler_.validate();
}

void SchedulerRun::check_batch(const ScheduledBatch& batch) {
  expect(batch.num_tokens() <= options_.max_tokens, "the token budget is exceeded");
  expect(std::ssize(batch.sequences()) <= options_.max_sequences, "too many sequences");
  in_batch_.clear();
  for (const ScheduledSequence& sequence : batch.sequences()) {
    const auto found = alive_.find(sequence.request);
    expect(found != alive_.end(), "an ended request is scheduled");
    const Known& known = found->second;
    expect(!known.is_cancelled, "a cancelled request is scheduled");
    expect(known.deadline < 0 || known.deadline > num_steps_ - 1, "a late request is scheduled");
    expect(!known.needs_token, "a request without a token is scheduled");
    std::vector<Token> tokens = known.tokens;
    const std::int64_t end = sequence.first_position + sequence.num_tokens - sequence.num_drafts;
    expect(end <= std::ssize(tokens), "tokens are scheduled that nobody gave");
    expect(sequence.is_last_chunk == (end == std::ssize(tokens)), "is_last_chunk is wrong");
    expect(sequence.num_drafts == 0 || sequence.is_last_chunk, "drafts before the last token");
    expect(sequence.num_drafts <= std::ssize(known.drafts), "drafts that nobody gave");
    tokens.insert(tokens.end(), known.drafts.begin(), known.drafts.begin() + sequence.num_drafts);
    for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
      expect(batch.tokens()[static_cast<std::size_t>(sequence.first_row + i)] ==
                 tokens[static_cast<std::size_t>(sequence.first_position + i)],
             "a wrong token is scheduled");
    }
    expect(in_batch_.emplace(sequence.request, std::move(tokens)).second,
           "a request is scheduled twice");
    text_ << sequence.request.value << ":" << sequence.first_position << "+" << sequence.num_tokens
          << " ";
  }
  text_ << "\n";
  check_slots(batch);
}

// Who could run in this step, as far as the caller knows, best rank first.
std::vector<RequestId> SchedulerRun::runnable() const {
  std::vector<RequestId> ids;
  for (const auto& [id, known] : alive_) {
    if (!known.needs_token) ids.push_back(id);
  }
  std::ranges::stable_sort(ids, {}, [this](RequestId id) { return alive_.at(id).rank_key; });
  return ids;
}

// There is no step without progress while somebody has work, and nobody who is first in rank is
// passed over for longer than those before it need to end. The prefix options may reorder, limits
// on lengths may stop an admission, and blocks of those who wait for the caller are not to be
// had.
void SchedulerRun::check_progress(std::vector<RequestId> could_run,
                                  std::span<const FinishedRequest> finished,
                                  const std::vector<RequestId>& ran) {
  for (const FinishedRequest& end : finished) {
    if (end.reason != FinishReason::kLength) std::erase(could_run, end.id);
  }
  for (const RequestId id : ran) num_passed_.erase(id);
  if (could_run.empty() || caller_is_slow_) return;
  expect(!ran.empty(), "there is work and nothing is scheduled");
  const bool by_rank = options_.prefix.window == 1 && !options_.prefix.wait_for_shared &&
                       options_.max_total_length == 0;
  if (!by_rank || std::ranges::find(ran, could_run[0]) != ran.end()) return;
  expect(++num_passed_[could_run[0]] <= kMaxPassed, "the first in rank is passed over");
}

// No two tokens of a step go to the same place, and none to the null block.
void SchedulerRun::check_slots(const ScheduledBatch& batch) {
  std::map<int, std::set<std::int64_t>> used;  // by pool
  for (std::size_t g = 0; g < blocks_.groups.size(); ++g) {
    const BatchView view = batch.view(static_cast<int>(g));
    expect(view.num_sequences() == std::ssize(batch.sequences()), "a view has other sequences");
    expect(view.kv.slots.size == batch.num_tokens(), "a view has other slots than tokens");
    for (const std::int64_t slot : view.kv.slots) {
      expect(slot >= blocks_.block_size, "a token goes to the null block");
      expect(used[blocks_.groups[g].pool].insert(slot).second, "two tokens go to one slot");
    }
  }
}

void SchedulerRun::take_result(const StepResult& result) {
  for (const ReadyRequest& ready : result.ready) {
    Known& known = alive_.at(ready.id);
    expect(!known.needs_token, "a request is ready twice");
    known.needs_token = true;
    known.num_drafts = ready.num_drafts;
    expect(ready.num_drafts <= std::ssize(known.drafts), "drafts are ready that nobody gave");
  }
  for (const FinishedRequest& end : result.finished) {
    const auto found = alive_.find(end.id);
    expect(found != alive_.end(), "a request ends twice");
    const Known& known = found->second;
    const std::int64_t num_new = std::ssize(known.tokens) - known.num_prompt;
    expect(end.num_new_tokens == num_new, "the number of new tokens is wrong");
    switch (end.reason) {
      case FinishReason::kLength:
        expect(num_new == known.max_new, "ended for length too early");
        break;
      case FinishReason::kStopped:
        expect(stopped_.contains(end.id), "stopped by nobody");
        break;
      case FinishReason::kCancelled:
        expect(known.is_cancelled, "cancelled by nobody");
        break;
      case FinishReason::kDeadline:
        expect(known.deadline >= 0 && known.deadline <= num_steps_ - 1,
               "ended before its deadline");
        break;
      case FinishReason::kTooLarge:
        expect(num_new == 0, "began although it is too large");
        break;
    }
    text_ << "end " << end.id.value << " " << finish_reason_name(end.reason) << "\n";
    num_passed_.erase(end.id);
    alive_.erase(found);
  }
}

// A caller that sometimes is slow, stops or forks.
void SchedulerRun::answer() {
  std::vector<RequestId> waiting;
  caller_is_slow_ = false;
  for (const auto& [id, known] : alive_) {
    if (known.needs_token && !stopped_.contains(id)) waiting.push_back(id);
  }
  for (const RequestId id : waiting) {
    if (chance(5)) {
      caller_is_slow_ = true;
      continue;
    }
    if (chance(4)) {
      call("finish", [&] { scheduler_.finish(id); });
      stopped_.insert(id);
      continue;
    }
    if (chance(6) && alive_.size() < 40) {
      RequestId child;
      const bool keeps_blocks = alive_.at(id).num_drafts == 0;  // drafts are given up first
      call(
          "fork", [&] { child = scheduler_.fork(id); }, keeps_blocks);
      alive_.at(id).num_drafts = 0;
      alive_[child] = alive_.at(id);
      alive_[child].is_cancelled = false;
      alive_[child].num_drafts = 0;
      give_tokens(child);
    }
    give_tokens(id);
  }
}

// As many as the drafts have got right, one more, and new drafts.
void SchedulerRun::give_tokens(RequestId id) {
  Known& known = alive_.at(id);
  const std::int64_t left = known.max_new - (std::ssize(known.tokens) - known.num_prompt);
  std::vector<Token> tokens;
  bool agrees = true;
  for (std::int64_t i = 0; agrees && i <= known.num_drafts && i < left; ++i) {
    agrees = i < known.num_drafts && chance(60);
    const auto token = agrees ? known.drafts[static_cast<std::size_t>(i)] : pick(0, 50);
    tokens.push_back(static_cast<Token>(token));
  }
  while (std::ssize(tokens) < left && chance(10)) tokens.push_back(static_cast<Token>(pick(0, 50)));
  std::vector<Token> drafts;
  for (int i = chance(25) ? pick(1, 5) : 0; i > 0; --i) {
    drafts.push_back(static_cast<Token>(pick(0, 50)));
  }
  call("extend", [&] { scheduler_.extend(id, tokens, drafts); });
  known.tokens.insert(known.tokens.end(), tokens.begin(), tokens.end());
  known.drafts = drafts;
  // The last one ends it: no step will see it again, and the next result says so.
  known.needs_token = std::ssize(known.tokens) - known.num_prompt == known.max_new;
  if (known.needs_token) stopped_.insert(id);
}

void SchedulerRun::check_end() {
  expect(alive_.empty(), "a request has never been reported as ended");
  const BlockStats stats = manager_.stats();
  expect(stats.num_sequences == 0, "sequences are left");
  for (const PoolStats& pool : stats.pools) {
    expect(pool.num_in_use == 0 && pool.num_host_in_use == 0, "blocks are left in use");
    expect(pool.num_free + pool.num_evictable == pool.num_usable, "blocks are lost");
  }
}

}  // namespace quire::test
