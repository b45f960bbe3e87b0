// SPDX-License-Identifier: Apache-2.0
// One random trace through a scheduler: random options, requests and callers, and after every step
// what must always hold.
//
// Properties: budgets are kept; every request ends exactly once, for a reason that is true; tokens
// are computed in order and none is left out; every key that attention would read is there; the
// first in rank runs in every step; a request waits no longer than the bound of its rank; cancelled
// and late requests are never scheduled again; at the end all blocks are back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "model/simulated_cache.h"
#include "quire/block_manager.h"
#include "quire/scheduler.h"

namespace quire::test {

class SchedulerRun {
 public:
  // Makes the calls of the scheduler, each by calling `call` until it returns without throwing.
  // `check` is to be called after every time that it has thrown. Neither may change what the test
  // knows.
  using Attempt = std::function<void(const char* name, const std::function<void()>& call,
                                     const std::function<void()>& check)>;

  explicit SchedulerRun(std::uint32_t seed, Attempt attempt = {});

  // The batches as text. Throws std::logic_error naming what does not hold.
  std::string play();

  SchedulerStats stats() const { return scheduler_.stats(); }
  BlockStats block_stats() const { return manager_.stats(); }

 private:
  // What the test knows of a request.
  struct Known {
    std::vector<Token> tokens;
    std::vector<Token> drafts;  // given with the last of them
    std::int64_t num_prompt = 0;
    std::int64_t max_new = 0;
    std::int64_t rank_key = 0;
    std::int64_t deadline = -1;   // in steps
    std::int64_t num_drafts = 0;  // computed when it became ready
    bool is_cancelled = false;
    bool needs_token = false;
  };

  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  BlockManagerOptions random_blocks();
  SchedulerOptions random_options();

  // A call that must not change anything when it fails, and a step, which may preempt and admit.
  void call(const char* name, const std::function<void()>& what, bool keeps_blocks = true);
  void call_schedule(const std::function<void()>& what);
  std::string dump() const;

  void submit();
  void cancel();
  void step();
  void answer();
  void give_tokens(RequestId id);

  void check_batch(const ScheduledBatch& batch);
  void check_slots(const ScheduledBatch& batch);
  std::vector<RequestId> runnable() const;
  void check_progress(std::vector<RequestId> could_run, std::span<const FinishedRequest> finished,
                      const std::vector<RequestId>& ran);
  void take_result(const StepResult& result);
  void check_end();

  // The longest request: 60 tokens of a prompt, one in a step, and 12 more; and steps abandoned.
  static constexpr int kMaxPassed = 90;

  std::mt19937 random_;
  Attempt attempt_;
  BlockManagerOptions blocks_;
  std::int64_t num_steps_ = 0;
  SchedulerOptions options_;
  BlockManager manager_;
  Scheduler scheduler_;
  SimulatedCache cache_;
  std::map<RequestId, Known> alive_;
  std::set<RequestId> stopped_;  // no token will be asked for
  bool caller_is_slow_ = false;  // somebody ready has not got its token for the next step
  std::map<RequestId, int> num_passed_;
  std::map<RequestId, std::vector<Token>> in_batch_;  // tokens and drafts
  std::ostringstream text_;
};

}  // namespace quire::test
