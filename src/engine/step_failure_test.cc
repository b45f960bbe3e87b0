// SPDX-License-Identifier: Apache-2.0
// Memory runs out at every allocation of every call of an engine, one after the other. Calls other
// than step have then changed nothing; a step has computed nothing, lost nothing, and is repeated
// until it needs no more allocations than it may have. Every row is compared all the while, so that
// a copy, a token or a block that got lost on the way would show.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "allocation/allocations.h"
#include "engine/engine_fixture.h"

namespace quire {
namespace {

using testing::EngineFixture;

class StepFailure : public ::testing::Test {
 protected:
  // Fails the first, the second, ... allocation of the call until it needs no more of them.
  // `check` runs after every failure.
  template <class F, class Check>
  void attempt(const std::string& name, const F& call, const Check& check) {
    test::fail_every_allocation(call, [&](std::int64_t allowed) {
      ++num_failures[name];
      check(name + " after " + std::to_string(allowed) + " allocations");
      return !HasFailure();
    });
  }

  // All that can be seen of an engine.
  static std::string dump(const EngineFixture& f) {
    std::ostringstream out;
    const SchedulerStats stats = f.engine.scheduler().stats();
    out << f.engine.num_unfinished() << ' ' << stats.num_steps << ' ' << stats.num_submitted << ' '
        << stats.num_tokens << ' ' << stats.num_waiting << ' ' << stats.num_running << ' '
        << stats.num_paused << ' ' << stats.num_swapped << ' ' << stats.num_preemptions() << '\n';
    for (const auto& [id, request] : f.requests) {
      try {
        out << id.value << ':';
        for (const Token token : f.engine.scheduler().new_tokens(id)) out << ' ' << token;
      } catch (const Error&) {
        out << " unseen";
      }
      out << '\n';
    }
    return out.str() + f.engine.block_manager().dump();
  }

  template <class F>
  void attempt_unchanged(EngineFixture& f, const std::string& name, const F& call) {
    const std::string before = dump(f);
    attempt(name, call, [&](const std::string& what) { EXPECT_EQ(dump(f), before) << what; });
  }

  // A step that fails may have preempted, admitted and accepted; the rest is as it was.
  StepResult attempt_step(EngineFixture& f, const std::function<StepResult()>& step) {
    StepResult result;
    const SchedulerStats before = f.engine.scheduler().stats();
    const std::int64_t num_unfinished = f.engine.num_unfinished();
    std::map<RequestId, std::size_t> num_new;
    for (const auto& [id, request] : f.requests) {
      try {
        num_new[id] = f.engine.scheduler().new_tokens(id).size();
      } catch (const Error&) {  // no step has seen it yet
      }
    }
    attempt(
        "step", [&] { result = step(); },
        [&](const std::string& what) {
          const SchedulerStats stats = f.engine.scheduler().stats();
          EXPECT_EQ(stats.num_steps, before.num_steps) << what;
          EXPECT_EQ(stats.num_tokens, before.num_tokens) << what;
          EXPECT_EQ(f.engine.num_unfinished(), num_unfinished) << what;
          EXPECT_FALSE(f.engine.scheduler().has_batch()) << what;
          for (const auto& [id, count] : num_new) {
            EXPECT_EQ(f.engine.scheduler().new_tokens(id).size(), count) << what;
          }
          EXPECT_NO_THROW(f.engine.scheduler().validate()) << what;
          EXPECT_NO_THROW(f.engine.block_manager().validate()) << what;
        });
    return result;
  }

  static std::vector<Token> tokens_of(int seed, int count) {
    std::vector<Token> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(i < 5 ? i : (seed * 31 + i * 17) % 89);
    return tokens;
  }

  // Requests that come, fork and outgrow the cache; tokens of all that ended.
  std::map<RequestId, std::vector<Token>> play(const EngineOptions& options, bool fails) {
    EngineFixture f("reference", options);
    const auto call = [&](const char* name, const auto& what) {
      fails ? attempt_unchanged(f, name, what) : what();
    };
    if (fails) {
      f.take_step = [&](const std::function<StepResult()>& step) { return attempt_step(f, step); };
    }
    for (int i = 0; i < 200 && (i < 12 || f.engine.num_unfinished() > 0); ++i) {
      if (i < 10) submit(f, i, call);
      f.step_without_tokens();
      if (HasFailure()) return {};
      for (const ReadyRequest& ready : f.result.ready) answer(f, ready.id, call);
    }
    f.step_without_tokens();
    EXPECT_EQ(f.engine.num_unfinished(), 0);
    total += f.engine.scheduler().stats().num_preemptions();
    num_copies += f.engine.block_manager().stats().num_copies;
    std::map<RequestId, std::vector<Token>> texts;
    for (const auto& [id, request] : f.ended) texts[id] = request.tokens;
    return texts;
  }

  template <class Call>
  void submit(EngineFixture& f, int i, const Call& call) {
    const std::vector<Token> tokens = tokens_of(i, 4 + i);
    const Prompt prompt = f.engine.make_prompt(tokens);
    RequestId id;
    call("submit", [&] {
      id = f.engine.submit({.prompt = prompt,
                            .max_new_tokens = 8,
                            .priority = i % 3,
                            .deadline = std::chrono::hours(1'000'000)});
    });
    f.requests[id].tokens = tokens;
  }

  template <class Call>
  void answer(EngineFixture& f, RequestId id, const Call& call) {
    std::vector<RequestId> ids{id};
    if (f.requests.at(id).tokens.size() == 9 && f.requests.size() < 12) {
      RequestId child;
      call("fork", [&] { child = f.engine.fork(id); });
      f.requests[child] = f.requests.at(id);
      ids.push_back(child);
    }
    for (const RequestId each : ids) {
      std::vector<Token>& tokens = f.requests.at(each).tokens;
      const auto token = static_cast<Token>((tokens.back() * 31 + each.value) % 97);
      call("extend", [&] { f.engine.extend(each, std::vector<Token>{token}); });
      tokens.push_back(token);
    }
  }

  std::map<std::string, std::int64_t> num_failures;
  std::int64_t total = 0;  // preemptions
  std::int64_t num_copies = 0;
};

TEST_F(StepFailure, LosesNothing) {
  for (int way = 0; way < 4; ++way) {
    EngineOptions options = testing::toy_options(14, way == 2 ? 20 : 0);
    options.blocks.validate_interval = 0;
    options.blocks.share_tails = way == 3;
    if (way == 1) testing::add_windowed_group(options, 16);
    options.scheduler.preemption.allow_partial = way == 0;
    options.scheduler.preemption.byte_seconds = 0;
    const auto expected = play(options, false);
    EXPECT_EQ(play(options, true), expected) << "way " << way;
    ASSERT_FALSE(HasFailure()) << "way " << way;
    EXPECT_GE(expected.size(), 10U);
  }
  EXPECT_GT(total, 20);
  EXPECT_GT(num_copies, 10);
  for (const char* name : {"submit", "extend", "fork", "step"}) {
    EXPECT_GT(num_failures[name], 0) << name << " never ran out of memory";
  }
  EXPECT_GT(num_failures["step"], 300);
  for (const auto& [name, count] : num_failures) RecordProperty(name, std::to_string(count));
}

}  // namespace
}  // namespace quire
