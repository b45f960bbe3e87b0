// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "replay/ideal_cache.h"

namespace quire::replay {
namespace {

constexpr std::size_t kMaxMessages = 8;
constexpr std::size_t kMaxRefused = 100;
constexpr int kMaxEmptySteps = 1000;

// What is known of a request while it runs. `_s` on the trace clock, `_r` on that of the report.
struct Progressing {
  bool is_started = false;
  std::int64_t submit_step = 0;
  std::int64_t start_step = 0;
  std::int64_t first_step = 0;
  std::int64_t num_made = 0;
  std::int64_t num_passed = 0;  // tokens, for the progress
  double arrival_r = 0;
  double start_r = 0;
  double first_r = 0;
  std::int64_t ideal_hits = 0;
  RequestRecord record{};
};

// The work of one batch.
struct BatchWork {
  std::int64_t num_tokens = 0;
  std::int64_t num_sequences = 0;
  double num_pairs = 0;  // of a token and a key it sees
  Bucket bucket{};
};

class ReplayLoop {
 public:
  ReplayLoop(const Workload& workload, StepRunner& runner, const ReplayOptions& options)
      : workload_(workload),
        runner_(runner),
        options_(options),
        requests_(static_cast<std::size_t>(workload.size())) {
    require(options.sample_interval >= 1, "the sample interval must be at least 1, is ",
            options.sample_interval);
  }

  ReplayReport run();

 private:
  using Clock = std::chrono::steady_clock;

  Progressing& of(RequestId id) { return requests_[static_cast<std::size_t>(id.value - 1)]; }
  static std::int64_t index_of(RequestId id) { return static_cast<std::int64_t>(id.value) - 1; }

  void submit_due();
  void submit_next();
  void step();
  void see(const ScheduledBatch& batch);
  void pass_time();
  void take_results(const StepResult& result);
  void take_token(RequestId id);
  void end(RequestId id);
  void refuse(const FinishedRequest& finished);
  void leave(RequestId id);
  void pass_tokens(Progressing& request, std::int64_t num_tokens);
  void look();
  void validate();
  void note_violation(const std::string& message);
  void report_progress();
  void finish();

  const Workload& workload_;
  StepRunner& runner_;
  const ReplayOptions& options_;
  std::vector<Progressing> requests_;
  std::vector<Token> tokens_;  // of the prompt being made
  IdealCache ideal_;
  std::int64_t num_submitted_ = 0;
  std::int64_t num_ended_ = 0;
  std::int64_t num_passed_ = 0;  // tokens
  std::int64_t total_tokens_ = 0;
  int num_empty_steps_ = 0;

  double now_s_ = 0;         // trace clock
  double now_r_ = 0;         // clock of the report
  double step_begin_s_ = 0;  // of the last step
  double duration_s_ = 0;
  double duration_r_ = 0;
  BatchWork work_;
  StepRecord looked_;  // levels as they were looked at last
  std::int64_t last_preemptions_ = 0;
  std::int64_t last_evictions_ = 0;

  std::vector<double> ttft_s_, ttft_steps_, token_s_, token_steps_, queue_s_, queue_steps_;
  std::vector<double> total_s_, running_, waiting_, in_use_;
  ReplayReport report_;
};

ReplayReport ReplayLoop::run() {
  const Clock::time_point start = Clock::now();
  report_.num_requests = workload_.size();
  for (std::int64_t i = 0; i < workload_.size(); ++i) {
    total_tokens_ += workload_.input_length(i) + workload_.output_length(i);
  }
  while (num_ended_ < workload_.size()) {
    if (num_submitted_ == num_ended_) {  // nothing runs: go to the next arrival
      now_s_ = std::max(now_s_, workload_.arrival_s(num_submitted_));
      duration_s_ = duration_r_ = 0;
      submit_next();
    }
    submit_due();
    step();
  }
  finish();
  report_.wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return std::move(report_);
}

void ReplayLoop::submit_due() {
  while (!options_.serial && num_submitted_ < workload_.size() &&
         workload_.arrival_s(num_submitted_) <= now_s_) {
    submit_next();
  }
}

// A request that came during the last step has waited for the rest of it.
void ReplayLoop::submit_next() {
  const std::int64_t index = num_submitted_++;
  workload_.write_prompt(index, tokens_);
  const Prompt prompt(tokens_, runner_.block_manager().options().block_size);
  Progressing& request = requests_[static_cast<std::size_t>(index)];
  const double arrival_s = options_.serial ? now_s_ : workload_.arrival_s(index);
  const double waited = duration_s_ > 0 ? std::min((now_s_ - arrival_s) / duration_s_, 1.0) : 0;
  request.submit_step = report_.num_steps;
  request.arrival_r = now_r_ - waited * duration_r_;
  request.ideal_hits = ideal_.add(prompt);
  request.record = {.index = index,
                    .arrival_s = arrival_s,
                    .input_length = prompt.num_tokens(),
                    .output_length = workload_.output_length(index)};
  report_.prompt_tokens += prompt.num_tokens();
  report_.output_tokens += request.record.output_length;
  const RequestId id = runner_.submit({.prompt = prompt,
                                       .max_new_tokens = request.record.output_length,
                                       .priority = workload_.priority(index)});
  QUIRE_CHECK(index_of(id) == index);
}

void ReplayLoop::step() {
  work_ = {};
  step_begin_s_ = now_s_;
  if (options_.lifetimes != nullptr) options_.lifetimes->set_time(now_s_);
  const StepResult result = runner_.step([this](const ScheduledBatch& batch) { see(batch); });
  ++report_.num_steps;
  const bool is_idle = result.num_tokens == 0 && result.finished.empty();
  num_empty_steps_ = is_idle ? num_empty_steps_ + 1 : 0;
  if (num_empty_steps_ > kMaxEmptySteps) {
    fail(ErrorCode::kInternal, "nothing was scheduled in ", kMaxEmptySteps, " steps, while ",
         runner_.num_unfinished(), " requests have not ended");
  }
  pass_time();
  take_results(result);
  const bool has_levels = report_.num_steps % options_.sample_interval == 0;
  if (has_levels) look();
  work_.bucket.num_steps = 1;
  report_.series.add(step_begin_s_, work_.bucket);
  if (options_.validate_interval > 0 && report_.num_steps % options_.validate_interval == 0) {
    validate();
  }
  if (options_.observer != nullptr) {
    StepRecord record = looked_;
    record.index = report_.num_steps - 1;
    record.has_levels = has_levels;
    record.begin_s = step_begin_s_;
    record.duration_s = duration_s_;
    record.prefill_tokens = work_.bucket.prefill_tokens;
    record.decode_tokens = work_.bucket.decode_tokens;
    record.num_sequences = work_.num_sequences;
    options_.observer->on_step(record);
  }
  report_progress();
}

void ReplayLoop::see(const ScheduledBatch& batch) {
  const std::int64_t block_size = runner_.block_manager().options().block_size;
  Bucket& bucket = work_.bucket;
  work_.num_tokens = batch.num_tokens();
  work_.num_sequences = std::ssize(batch.sequences());
  for (const ScheduledSequence& sequence : batch.sequences()) {
    Progressing& request = of(sequence.request);
    const std::int64_t first = sequence.first_position;
    const std::int64_t count = sequence.num_tokens;
    const std::int64_t num_prefill =
        std::clamp<std::int64_t>(request.record.input_length - first, 0, count);
    bucket.prefill_tokens += num_prefill;
    bucket.decode_tokens += count - num_prefill;
    work_.num_pairs += static_cast<double>(count) *
                       (static_cast<double>(first) + (static_cast<double>(count) + 1) / 2);
    pass_tokens(request, first + count);
    if (request.is_started) continue;
    request.is_started = true;
    request.start_step = report_.num_steps;
    request.start_r = now_r_;
    request.record.start_s = now_s_;
    request.record.cached_tokens = first;
    bucket.cached_tokens += first;
    bucket.full_blocks += request.record.input_length / block_size;
    bucket.hit_blocks += first / block_size;
    bucket.ideal_hit_blocks += request.ideal_hits;
  }
  report_.computed_tokens += batch.num_tokens();
  report_.full_blocks += bucket.full_blocks;
  report_.hit_blocks += bucket.hit_blocks;
  report_.ideal_hit_blocks += bucket.ideal_hit_blocks;
}

// Lengths are scaled, so a token stands for `scale` tokens and a step for `scale` steps.
void ReplayLoop::pass_time() {
  const auto scale = static_cast<double>(workload_.options().scale);
  const StepCost& cost = options_.cost;
  duration_s_ = scale * (cost.step_s + cost.token_s * static_cast<double>(work_.num_tokens) +
                         cost.key_s * scale * work_.num_pairs);
  const double computing_s = runner_.computing_seconds();
  duration_r_ = computing_s > 0 ? computing_s : duration_s_;
  report_.computing_seconds += computing_s;
  now_s_ += duration_s_;
  now_r_ += duration_r_;
}

void ReplayLoop::take_results(const StepResult& result) {
  for (const FinishedRequest& finished : result.finished) {
    if (finished.reason != FinishReason::kLength) {
      refuse(finished);
    } else if (of(finished.id).record.output_length == 0) {
      end(finished.id);
    }
  }
  for (const ReadyRequest& ready : result.ready) take_token(ready.id);
}

void ReplayLoop::refuse(const FinishedRequest& finished) {
  const RequestRecord& record = of(finished.id).record;
  const std::string reason = finish_reason_name(finished.reason);
  ++report_.num_refused;
  if (report_.refused.size() < kMaxRefused) {
    report_.refused.push_back(
        {.index = record.index,
         .input_length = record.input_length,
         .output_length = record.output_length,
         .reason = finished.detail.empty() ? reason : reason + ": " + finished.detail});
  }
  leave(finished.id);
}

// Whatever is left of it does not come any more.
void ReplayLoop::leave(RequestId id) {
  Progressing& request = of(id);
  pass_tokens(request, request.record.input_length + request.record.output_length);
  runner_.forget(id);
  ++num_ended_;
}

// All before `num_tokens` are there. What is computed again does not count twice.
void ReplayLoop::pass_tokens(Progressing& request, std::int64_t num_tokens) {
  num_passed_ += std::max<std::int64_t>(num_tokens - request.num_passed, 0);
  request.num_passed = std::max(request.num_passed, num_tokens);
}

void ReplayLoop::take_token(RequestId id) {
  Progressing& request = of(id);
  if (request.num_made++ == 0) {
    request.first_r = now_r_;
    request.first_step = report_.num_steps;
    request.record.first_token_s = now_s_;
  }
  const bool is_last = request.num_made == request.record.output_length;
  runner_.extend(id, workload_.output_token(index_of(id), request.num_made - 1));
  if (is_last) end(id);
}

void ReplayLoop::end(RequestId id) {
  Progressing& request = of(id);
  request.record.end_s = now_s_;
  if (request.num_made == 0) {  // only a prompt: its computation is all there is
    request.first_r = now_r_;
    request.first_step = report_.num_steps;
    request.record.first_token_s = now_s_;
  }
  const auto steps_between = [](std::int64_t from, std::int64_t to) {
    return static_cast<double>(to - from);
  };
  ttft_s_.push_back(request.first_r - request.arrival_r);
  ttft_steps_.push_back(steps_between(request.submit_step, request.first_step));
  queue_s_.push_back(request.start_r - request.arrival_r);
  queue_steps_.push_back(steps_between(request.submit_step, request.start_step));
  total_s_.push_back(now_r_ - request.arrival_r);
  report_.ttft_histogram.add(ttft_s_.back());
  report_.queue_histogram.add(queue_s_.back());
  report_.total_histogram.add(total_s_.back());
  if (request.num_made > 1) {
    const auto num_gaps = static_cast<double>(request.num_made - 1);
    token_s_.push_back((now_r_ - request.first_r) / num_gaps);
    token_steps_.push_back(steps_between(request.first_step, report_.num_steps) / num_gaps);
    report_.token_histogram.add(token_s_.back());
  }
  if (options_.observer != nullptr) options_.observer->on_request(request.record);
  leave(id);
}

void ReplayLoop::look() {
  const SchedulerStats scheduler = runner_.scheduler().stats();
  const BlockStats blocks = runner_.block_manager().stats();
  const PoolStats& pool = blocks.pools.front();
  looked_.num_running = scheduler.num_running;
  looked_.num_waiting = scheduler.num_waiting + scheduler.num_paused + scheduler.num_swapped;
  looked_.in_use = pool.occupancy();
  looked_.evictable =
      static_cast<double>(pool.num_evictable) / static_cast<double>(pool.num_usable);
  running_.push_back(static_cast<double>(looked_.num_running));
  waiting_.push_back(static_cast<double>(looked_.num_waiting));
  in_use_.push_back(looked_.in_use);
  Bucket& bucket = work_.bucket;
  bucket.seconds = duration_s_;
  bucket.in_use = looked_.in_use * duration_s_;
  bucket.evictable = looked_.evictable * duration_s_;
  bucket.running = running_.back() * duration_s_;
  bucket.waiting = waiting_.back() * duration_s_;
  bucket.preemptions =
      scheduler.num_preemptions() - std::exchange(last_preemptions_, scheduler.num_preemptions());
  bucket.evictions = blocks.num_evictions - std::exchange(last_evictions_, blocks.num_evictions);
}

void ReplayLoop::validate() {
  try {
    runner_.block_manager().validate();
    runner_.scheduler().validate();
  } catch (const Error& error) {
    note_violation(concat("after step ", report_.num_steps, ": ", error.what()));
  }
}

void ReplayLoop::note_violation(const std::string& message) {
  ++report_.violations;
  if (report_.messages.size() < kMaxMessages) report_.messages.push_back(message);
}

void ReplayLoop::report_progress() {
  if (!options_.progress) return;
  options_.progress({.num_done = num_ended_,
                     .num_requests = workload_.size(),
                     .num_tokens = num_passed_,
                     .total_tokens = total_tokens_});
}

void ReplayLoop::finish() {
  report_.trace_seconds = now_s_;
  validate();
  look();
  report_.blocks = runner_.block_manager().stats();
  report_.scheduler = runner_.scheduler().stats();
  const PoolStats& pool = report_.blocks.pools.front();
  if (pool.num_in_use != 0 || pool.num_host_in_use != 0) {
    note_violation(concat(pool.num_in_use, " blocks and ", pool.num_host_in_use,
                          " host blocks are still in use after the last request"));
  }
  report_.verification = runner_.verification();
  report_.violations += report_.verification.num_violations;
  for (const std::string& message : report_.verification.messages) {
    if (report_.messages.size() < kMaxMessages) report_.messages.push_back(message);
  }
  report_.ttft_s = summarize(std::move(ttft_s_));
  report_.ttft_steps = summarize(std::move(ttft_steps_));
  report_.token_s = summarize(std::move(token_s_));
  report_.token_steps = summarize(std::move(token_steps_));
  report_.queue_s = summarize(std::move(queue_s_));
  report_.queue_steps = summarize(std::move(queue_steps_));
  report_.total_s = summarize(std::move(total_s_));
  report_.running = summarize(std::move(running_));
  report_.waiting = summarize(std::move(waiting_));
  report_.in_use = summarize(std::move(in_use_));
  if (options_.lifetimes == nullptr) return;
  options_.lifetimes->set_time(now_s_);
  report_.evicted_histogram = options_.lifetimes->evicted();
  report_.alive_histogram = options_.lifetimes->alive();
}

}  // namespace

std::string to_string(const RefusedRequest& request) {
  return concat("request ", request.index + 1, " of the trace, ", request.input_length, " + ",
                request.output_length, " tokens: ", request.reason);
}

ReplayReport replay(const Workload& workload, StepRunner& runner, const ReplayOptions& options) {
  return ReplayLoop(workload, runner, options).run();
}

}  // namespace quire::replay
