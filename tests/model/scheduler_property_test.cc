// SPDX-License-Identifier: Apache-2.0
// Random options, traces and callers for the scheduler; after every step what must always hold.
//
// Properties: budgets are kept; every request ends exactly once, for a reason that is true; tokens
// are computed in order and none is left out; the first in rank runs in every step; a request waits
// no longer than the bound of its rank; the same trace gives the same batches; cancelled and late
// requests are never scheduled again; at the end all blocks are back. QUIRE_MODEL_TRACES sets how
// many traces the long run plays.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "quire/block_manager.h"
#include "quire/scheduler.h"

namespace quire::test {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

// What the test knows of a request.
struct Known {
  std::vector<Token> tokens;
  std::int64_t num_prompt = 0;
  std::int64_t max_new = 0;
  std::int64_t rank_key = 0;
  std::int64_t deadline = -1;  // in steps
  std::int64_t num_computed_once = 0;
  bool is_cancelled = false;
  bool needs_token = false;
};

class RandomRun {
 public:
  explicit RandomRun(std::uint32_t seed)
      : random_(seed),
        blocks_(random_blocks()),
        options_(random_options()),
        manager_(blocks_),
        scheduler_(options_, blocks_) {}

  // The batches as text. Throws what does not hold.
  std::string play() {
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

  SchedulerStats stats() const { return scheduler_.stats(); }
  BlockStats block_stats() const { return manager_.stats(); }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  BlockManagerOptions random_blocks() {
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

  SchedulerOptions random_options() {
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
    options.preemption.byte_seconds = chance(50) ? 0 : 1e-9;
    options.clock = [this] { return std::chrono::nanoseconds(num_steps_); };
    return options;
  }

  void submit() {
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
    const RequestId id = scheduler_.submit(request);
    alive_[id] = known;
  }

  void cancel() {
    if (alive_.empty()) return;
    auto chosen = alive_.begin();
    std::advance(chosen, pick(0, static_cast<int>(alive_.size()) - 1));
    chosen->second.is_cancelled = true;
    scheduler_.cancel(chosen->first);
  }

  void step() {
    const ScheduledBatch& batch = scheduler_.schedule(manager_);
    ++num_steps_;
    scheduler_.validate();
    manager_.validate();
    check_batch(batch);
    if (chance(3)) {
      scheduler_.abandon(batch);
      --num_steps_;
      text_ << "abandoned\n";
      scheduler_.validate();
      manager_.validate();
      return;
    }
    std::vector<RequestId> could_run = runnable();
    std::vector<RequestId> ran;
    for (const ScheduledSequence& sequence : batch.sequences()) ran.push_back(sequence.request);
    const StepResult result = scheduler_.commit(batch);
    check_progress(std::move(could_run), result.finished, ran);
    take_result(result);
    manager_.validate();
    answer();
    scheduler_.validate();
  }

  void check_batch(const ScheduledBatch& batch) {
    expect(batch.num_tokens() <= options_.max_tokens, "the token budget is exceeded");
    expect(std::ssize(batch.sequences()) <= options_.max_sequences, "too many sequences");
    std::set<RequestId> seen;
    for (const ScheduledSequence& sequence : batch.sequences()) {
      expect(seen.insert(sequence.request).second, "a request is scheduled twice");
      const auto found = alive_.find(sequence.request);
      expect(found != alive_.end(), "an ended request is scheduled");
      const Known& known = found->second;
      expect(!known.is_cancelled, "a cancelled request is scheduled");
      expect(known.deadline < 0 || known.deadline > num_steps_ - 1, "a late request is scheduled");
      expect(!known.needs_token, "a request without a token is scheduled");
      const std::int64_t end = sequence.first_position + sequence.num_tokens;
      expect(end <= std::ssize(known.tokens), "tokens are scheduled that nobody gave");
      expect(sequence.is_last_chunk == (end == std::ssize(known.tokens)), "is_last_chunk is wrong");
      for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
        expect(batch.tokens()[static_cast<std::size_t>(sequence.first_row + i)] ==
                   known.tokens[static_cast<std::size_t>(sequence.first_position + i)],
               "a wrong token is scheduled");
      }
      text_ << sequence.request.value << ":" << sequence.first_position << "+"
            << sequence.num_tokens << " ";
    }
    text_ << "\n";
    check_slots(batch);
  }

  // Who could run in this step, as far as the caller knows, best rank first.
  std::vector<RequestId> runnable() const {
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
  void check_progress(std::vector<RequestId> could_run, std::span<const FinishedRequest> finished,
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
  void check_slots(const ScheduledBatch& batch) {
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

  void take_result(const StepResult& result) {
    for (const ReadyRequest& ready : result.ready) {
      Known& known = alive_.at(ready.id);
      expect(!known.needs_token, "a request is ready twice");
      known.needs_token = true;
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
  void answer() {
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
        scheduler_.finish(id);
        stopped_.insert(id);
        continue;
      }
      if (chance(6) && alive_.size() < 40) {
        const RequestId child = scheduler_.fork(id);
        alive_[child] = alive_.at(id);
        alive_[child].is_cancelled = false;
        give_token(child);
      }
      give_token(id);
    }
  }

  void give_token(RequestId id) {
    Known& known = alive_.at(id);
    const auto token = static_cast<Token>(pick(0, 50));
    scheduler_.extend(id, token);
    known.tokens.push_back(token);
    // The last one ends it: no step will see it again, and the next result says so.
    known.needs_token = std::ssize(known.tokens) - known.num_prompt == known.max_new;
    if (known.needs_token) stopped_.insert(id);
  }

  void check_end() {
    expect(alive_.empty(), "a request has never been reported as ended");
    const BlockStats stats = manager_.stats();
    expect(stats.num_sequences == 0, "sequences are left");
    for (const PoolStats& pool : stats.pools) {
      expect(pool.num_in_use == 0 && pool.num_host_in_use == 0, "blocks are left in use");
      expect(pool.num_free + pool.num_evictable == pool.num_usable, "blocks are lost");
    }
  }

  // The longest request: 60 tokens of a prompt, one in a step, and 12 more; and steps abandoned.
  static constexpr int kMaxPassed = 90;

  std::mt19937 random_;
  BlockManagerOptions blocks_;
  std::int64_t num_steps_ = 0;
  SchedulerOptions options_;
  BlockManager manager_;
  Scheduler scheduler_;
  std::map<RequestId, Known> alive_;
  std::set<RequestId> stopped_;  // no token will be asked for
  bool caller_is_slow_ = false;  // somebody ready has not got its token for the next step
  std::map<RequestId, int> num_passed_;
  std::ostringstream text_;
};

TEST(SchedulerProperty, RandomTraces) {
  EXPECT_TRUE(rc::check("every step of every trace holds", [] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    try {
      RandomRun(seed).play();
    } catch (const std::exception& error) {
      RC_FAIL("seed " + std::to_string(seed) + ": " + error.what());
    }
  }));
}

TEST(SchedulerProperty, EqualTracesGiveEqualBatches) {
  EXPECT_TRUE(rc::check("two runs of a trace are equal", [] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    RC_ASSERT(RandomRun(seed).play() == RandomRun(seed).play());
  }));
}

TEST(SchedulerProperty, LongRunSeesEverything) {
  const char* text = std::getenv("QUIRE_MODEL_TRACES");
  const int num_traces = text != nullptr ? std::atoi(text) : 400;
  SchedulerStats total;
  std::int64_t num_hits = 0;
  for (int seed = 0; seed < num_traces; ++seed) {
    RandomRun run(static_cast<std::uint32_t>(seed) + 1'000'000);
    ASSERT_NO_THROW(run.play()) << "seed " << seed + 1'000'000;
    const SchedulerStats stats = run.stats();
    total.num_steps += stats.num_steps;
    total.num_submitted += stats.num_submitted;
    total.num_tokens += stats.num_tokens;
    total.num_recomputes += stats.num_recomputes;
    total.num_partial_releases += stats.num_partial_releases;
    total.num_swaps += stats.num_swaps;
    for (std::size_t i = 0; i < total.num_finished.size(); ++i) {
      total.num_finished[i] += stats.num_finished[i];
    }
    num_hits += run.block_stats().num_hit_blocks;
  }
  RecordProperty("steps", std::to_string(total.num_steps));
  RecordProperty("requests", std::to_string(total.num_submitted));
  EXPECT_GT(total.num_recomputes, num_traces / 10);
  EXPECT_GT(total.num_partial_releases, num_traces / 10);
  EXPECT_GT(total.num_swaps, num_traces / 10);
  EXPECT_GT(num_hits, num_traces);
  for (const std::int64_t count : total.num_finished) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace quire::test
