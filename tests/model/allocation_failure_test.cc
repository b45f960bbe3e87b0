// SPDX-License-Identifier: Apache-2.0
// Memory runs out at every allocation of every call, one after the other: each time the call throws
// std::bad_alloc and has changed nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "allocation/allocations.h"
#include "quire/block_manager.h"

namespace quire::test {
namespace {

class AllocationFailure : public testing::Test {
 protected:
  static constexpr int kBlockSize = 2;

  static BlockManagerOptions options() {
    BlockManagerOptions options;
    options.block_size = kBlockSize;
    options.pools = {{.num_blocks = 40, .num_host_blocks = 40}};
    options.groups = {{}, {.mask = {.window_left = 5}}};
    options.share_tails = true;
    options.compare_tokens = true;
    options.validate_interval = 0;
    return options;
  }

  // Fails the first, the second, ... allocation of the call until it needs no more of them.
  template <class F>
  void attempt(const char* name, F&& call) {
    const std::string before = manager_.dump();
    fail_every_allocation(call, [&](std::int64_t allowed) {
      ++num_failures_[name];
      EXPECT_EQ(manager_.dump(), before) << name << " after " << allowed << " allocations";
      manager_.validate();
      return !HasFatalFailure() && !HasNonfatalFailure();
    });
  }

  Prompt draw_prompt() {
    std::vector<Token> tokens;
    const std::size_t size = 1 + random_() % 20;
    for (std::size_t i = 0; i < size; ++i) tokens.push_back(static_cast<Token>(random_() % 2));
    return Prompt(tokens, kBlockSize);
  }

  void run_once() {
    const std::size_t pick = live_.empty() ? 0 : random_() % live_.size();
    const auto kind = random_() % 12;
    if (live_.empty() || kind <= 1) return admit();
    const SequenceId id = live_[pick];
    const bool is_busy = manager_.num_appended(id) > 0;
    if (manager_.is_swapped(id)) {
      return attempt("swap_in", [&] { (void)manager_.swap_in(id); });
    }
    if (kind <= 4) return step(id);
    if (kind == 5 && !is_busy) {
      SequenceId child;
      attempt("fork", [&] { child = manager_.fork(id); });
      live_.push_back(child);
      prompt_tokens_[child.value] = prompt_tokens_[id.value];
    } else if (kind == 6 && !is_busy) {
      attempt("swap_out", [&] { (void)manager_.swap_out(id); });
    } else if (kind == 7) {
      attempt("truncate", [&] { (void)manager_.truncate(id, 5); });
    } else if (kind == 8) {
      const auto size = static_cast<std::int64_t>(30 + random_() % 40);
      attempt("resize", [&] { (void)manager_.resize(0, size); });
    } else if (kind == 9 && random_() % 8 == 0) {
      attempt("reset", [&] { manager_.reset_prefix_cache(); });
    } else if (kind == 10 && random_() % 16 == 0) {
      attempt("reserve",
              [&] { manager_.reserve(static_cast<std::int64_t>(live_.size() + 3), 40); });
    } else {
      attempt("free", [&] { manager_.free(id); });
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }

  void admit() {
    const Prompt prompt = draw_prompt();
    std::optional<Admission> admission;
    attempt("can_admit", [&] { (void)manager_.can_admit(prompt); });
    attempt("admit", [&] { admission = manager_.admit(prompt); });
    if (!admission) return;
    live_.push_back(admission->id);
    prompt_tokens_[admission->id.value] = prompt.num_tokens();
  }

  void step(SequenceId id) {
    bool appended = false;
    const auto num_tokens = static_cast<std::int64_t>(1 + random_() % 3);
    attempt("append", [&] { appended = manager_.append(id, num_tokens); });
    if (!appended) return;
    std::uint64_t ticket = 0;
    attempt("take_copies", [&] { ticket = manager_.take_copies().ticket; });
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < manager_.num_appended(id); ++i) tokens.push_back(0);
    const std::int64_t left = prompt_left(id);
    if (left == 0) {
      attempt("commit", [&] { manager_.commit(id, tokens); });
    } else {
      const std::int64_t count = std::min(left, manager_.num_appended(id));
      attempt("commit_prompt", [&] { manager_.commit_prompt(id, count); });
    }
    attempt("rollback", [&] { manager_.rollback(id, manager_.num_appended(id)); });
    attempt("complete_copies", [&] { manager_.complete_copies(ticket); });
  }

  // Tokens of its prompt that are not committed yet.
  std::int64_t prompt_left(SequenceId id) {
    const auto found = prompt_tokens_.find(id.value);
    return std::max<std::int64_t>(found->second - manager_.num_tokens(id), 0);
  }

  BlockManager manager_{options()};
  std::vector<SequenceId> live_;
  std::map<std::uint64_t, std::int64_t> prompt_tokens_;
  std::mt19937 random_{1};
  std::map<std::string, std::int64_t> num_failures_;
};

TEST_F(AllocationFailure, ChangesNothing) {
  for (int life = 0; life < 20; ++life) {
    manager_ = BlockManager(options());
    live_.clear();
    for (int i = 0; i < 200 && !HasFatalFailure(); ++i) run_once();
  }
  for (const char* name : {"can_admit", "admit", "append", "fork", "swap_out", "swap_in",
                           "take_copies", "resize", "reserve"}) {
    EXPECT_GT(num_failures_[name], 0) << name << " never ran out of memory";
  }
  for (const auto& [name, count] : num_failures_) RecordProperty(name, std::to_string(count));
}

// Once everything has its size, requests come and go without a single allocation.
TEST_F(AllocationFailure, NothingIsAllocatedInASteadyState) {
  const Prompt prompt(std::vector<Token>(12, 1), kBlockSize);
  manager_.reserve(4, 40);
  const auto serve = [&] {
    const SequenceId id = manager_.admit(prompt)->id;
    const SequenceId child = [&] {
      (void)manager_.append(id, 12 - manager_.num_tokens(id));
      manager_.complete_copies(manager_.take_copies().ticket);
      manager_.commit_prompt(id, manager_.num_appended(id));
      return manager_.fork(id);
    }();
    for (const SequenceId each : {id, child}) {
      for (Token token = 0; token < 9; ++token) {
        (void)manager_.append(each, 2);
        manager_.complete_copies(manager_.take_copies().ticket);
        manager_.commit(each, std::span(&token, 1));
        manager_.rollback(each, 1);
      }
    }
    (void)manager_.swap_out(child);
    manager_.complete_copies(manager_.take_copies().ticket);
    (void)manager_.swap_in(child);
    manager_.complete_copies(manager_.take_copies().ticket);
    manager_.free(child);
    manager_.free(id);
  };
  for (int i = 0; i < 3; ++i) serve();  // lists of copies find their size
  const std::int64_t before = num_allocations();
  for (int i = 0; i < 100; ++i) serve();
  EXPECT_EQ(num_allocations() - before, 0);
}

}  // namespace
}  // namespace quire::test
