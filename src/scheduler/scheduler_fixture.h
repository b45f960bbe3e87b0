// SPDX-License-Identifier: Apache-2.0
// For tests: a scheduler with its block manager, driven without computing anything. Every step
// checks what must hold after any step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "quire/block_manager.h"
#include "quire/scheduler.h"

namespace quire::testing {

inline std::vector<Token> token_run(Token first, std::int64_t count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline BlockManagerOptions one_group(std::int64_t num_blocks, int block_size = 4) {
  BlockManagerOptions options;
  options.block_size = block_size;
  options.pools = {{.num_blocks = num_blocks + 1}};
  options.groups = {LayerGroup{}};
  options.validate_interval = 1;
  return options;
}

class SchedulerFixture {
 public:
  SchedulerFixture(const SchedulerOptions& options, const BlockManagerOptions& blocks)
      : manager(blocks), scheduler(options, blocks) {}

  BlockManager manager;
  Scheduler scheduler;
  std::map<RequestId, FinishedRequest> finished;
  std::vector<std::vector<ScheduledSequence>> history;  // of every step
  StepResult result;

  RequestId submit(const std::vector<Token>& tokens, std::int64_t max_new_tokens,
                   std::int32_t priority = 0) {
    return scheduler.submit({.prompt = Prompt(tokens, manager.options().block_size),
                             .max_new_tokens = max_new_tokens,
                             .priority = priority});
  }

  // One step, then a token for everyone who is ready.
  const std::vector<ScheduledSequence>& step() {
    step_without_tokens();
    for (const ReadyRequest& ready : result.ready) {
      scheduler.extend(ready.id, static_cast<Token>(1000 + ready.id.value));
    }
    return history.back();
  }

  const std::vector<ScheduledSequence>& step_without_tokens() {
    const ScheduledBatch& batch = scheduler.schedule(manager);
    check(batch);
    history.emplace_back(batch.sequences().begin(), batch.sequences().end());
    result = scheduler.commit(batch);
    scheduler.validate();
    manager.validate();
    for (const FinishedRequest& end : result.finished) {
      EXPECT_TRUE(finished.emplace(end.id, end).second) << end.id.value << " ended twice";
    }
    return history.back();
  }

  // Until nothing is left; false if that takes too long.
  bool run(int max_steps = 10'000) {
    while (scheduler.num_unfinished() > 0 && max_steps-- > 0) step();
    step();  // reports what the last tokens have ended
    return scheduler.num_unfinished() == 0;
  }

  std::optional<FinishReason> reason(RequestId id) const {
    const auto found = finished.find(id);
    return found == finished.end() ? std::nullopt : std::optional(found->second.reason);
  }

  // Tokens of a request in a step.
  std::int64_t num_tokens_of(RequestId id, std::size_t step_index) const {
    for (const ScheduledSequence& sequence : history.at(step_index)) {
      if (sequence.request == id) return sequence.num_tokens;
    }
    return 0;
  }

 private:
  void check(const ScheduledBatch& batch) {
    const SchedulerOptions& limits = scheduler.options();
    EXPECT_LE(batch.num_tokens(), limits.max_tokens);
    EXPECT_LE(std::ssize(batch.sequences()), limits.max_sequences);
    std::set<RequestId> seen;
    std::int64_t row = 0;
    for (const ScheduledSequence& sequence : batch.sequences()) {
      EXPECT_TRUE(seen.insert(sequence.request).second);
      EXPECT_EQ(sequence.first_row, row);
      EXPECT_GE(sequence.num_tokens, 1);
      EXPECT_LE(sequence.num_tokens, limits.max_chunk);
      row += sequence.num_tokens;
    }
    EXPECT_EQ(row, batch.num_tokens());
    EXPECT_EQ(std::ssize(batch.positions()), batch.num_tokens());
  }
};

}  // namespace quire::testing
