// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_generator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "conformance/random.h"

namespace quire::replay {
namespace {

using conformance::Random;

double uniform(Random& random) {
  return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

double sample(const QuantileCurve& curve, Random& random) {
  return curve.at(uniform(random));
}

std::int64_t sample_tokens(const QuantileCurve& curve, Random& random) {
  const double tokens = std::min(sample(curve, random), static_cast<double>(kMaxTraceLength));
  return std::max<std::int64_t>(std::llround(tokens), 1);
}

// A request whose ids are not numbered yet.
struct Turn {
  std::int64_t time_ms = 0;
  std::int64_t conversation = 0;
  std::int64_t turn = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::int64_t num_shared = 0;  // blocks that are those of the turn before
  std::int64_t system = 0;      // which system prompt
};

// The share of conversations that go on after `turn` turns rises with it: those that have lasted
// last. With P(end after turn k) = a / (a + b + k - 1), mean (a + b - 1) / (a - 1); a is fitted.
constexpr double kTurnShape = 3.53;

double goes_on_share(double mean_turns, std::int64_t turn) {
  const double b = (mean_turns - 1) * (kTurnShape - 1);
  const double k = static_cast<double>(turn) - 1;
  return (b + k) / (kTurnShape + b + k);
}

class ConversationMaker {
 public:
  explicit ConversationMaker(const GeneratorOptions& options) : options_(options) {}

  // Appends the turns of one conversation that come before the end.
  void make(std::int64_t conversation, std::vector<Turn>& turns) const {
    Random random(options_.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(conversation));
    double time_s = start_s(conversation, random);
    Turn turn{.conversation = conversation, .turn = 1};
    turn.system = random.below(options_.num_system_prompts);
    turn.input = std::min(options_.system_tokens + sample_tokens(options_.first_tokens, random),
                          options_.max_input);
    turn.num_shared = options_.system_tokens / options_.block_tokens;
    while (time_s < options_.duration_s) {
      turn.output = sample_tokens(options_.output_tokens, random);
      turn.time_ms = to_ticks_ms(time_s);
      turns.push_back(turn);
      if (uniform(random) >= goes_on_share(options_.mean_turns, turn.turn)) return;
      advance(turn, random);
      if (turn.input > options_.max_input) return;
      time_s += sample(options_.turn_gap_s, random);
    }
  }

 private:
  double start_s(std::int64_t conversation, Random& random) const {
    constexpr double kGoldenRatio = 0.6180339887498949;  // its multiples spread evenly over [0, 1)
    const double even = std::fmod(static_cast<double>(conversation) * kGoldenRatio, 1.0);
    const double share = uniform(random);
    switch (options_.arrivals) {
      case Arrivals::kPoisson:
        return share * options_.duration_s;
      case Arrivals::kEven:
        return even * options_.duration_s;
      case Arrivals::kBurst:
        break;
    }
    return 0;
  }

  std::int64_t to_ticks_ms(double time_s) const {
    const double tick_ms = std::max(options_.tick_s * 1000, 1.0);
    return static_cast<std::int64_t>(std::floor(time_s * 1000 / tick_ms) * tick_ms);
  }

  // Of the turn before, only whole blocks are the same: its last one was cut off where its prompt
  // ended, and the answer follows.
  void advance(Turn& turn, Random& random) const {
    const double kind = uniform(random);
    const std::int64_t before = turn.input;
    ++turn.turn;
    if (kind < options_.resend_share) {
      turn.num_shared = (before + options_.block_tokens - 1) / options_.block_tokens;
      return;
    }
    std::int64_t kept = before;
    if (kind < options_.resend_share + options_.rewind_share) {
      const double share = sample(options_.rewind_kept, random);
      kept = std::max(static_cast<std::int64_t>(share * static_cast<double>(before)),
                      std::min(options_.system_tokens, before));
      turn.input = kept + sample_tokens(options_.rewind_tokens, random);
    } else {
      turn.input = before + turn.output + sample_tokens(options_.turn_tokens, random);
    }
    turn.num_shared = kept / options_.block_tokens;
  }

  const GeneratorOptions& options_;
};

void require_valid(const GeneratorOptions& options) {
  const auto in_range = [](const char* name, auto value, auto minimum, auto maximum) {
    require(value >= minimum && value <= maximum, name, " must be between ", minimum, " and ",
            maximum, ", is ", value);
  };
  const double max_s = static_cast<double>(kMaxTimestampMs) / 1000;
  in_range("the number of requests", options.num_requests, std::int64_t{1},
           std::int64_t{100'000'000});
  in_range("the duration in seconds", options.duration_s, 0.001, max_s);
  in_range("the tick in seconds", options.tick_s, 0.0, max_s);
  in_range("the tokens of one hash id", options.block_tokens, std::int64_t{1}, kMaxTraceLength);
  in_range("the longest input", options.max_input, std::int64_t{1}, kMaxTraceLength);
  in_range("the tokens of the system prompt", options.system_tokens, std::int64_t{0},
           options.max_input - 1);
  in_range("the number of system prompts", options.num_system_prompts, std::int64_t{1},
           std::int64_t{1'000'000});
  in_range("the mean number of turns", options.mean_turns, 1.0, 1000.0);
  in_range("the share of resent prompts", options.resend_share, 0.0, 1.0);
  in_range("the share of rewinds", options.rewind_share, 0.0, 1.0 - options.resend_share);
  in_range("the largest output", options.output_tokens.at(1), 1.0,
           static_cast<double>(kMaxTraceLength));
  in_range("the largest part that a rewind keeps", options.rewind_kept.at(1), 0.0, 1.0);
}

// Numbers the blocks by their first appearance. REQUIRES: turns of a conversation in order.
class IdGiver {
 public:
  IdGiver(const GeneratorOptions& options, std::int64_t num_conversations)
      : block_tokens_(options.block_tokens),
        systems_(static_cast<std::size_t>(options.num_system_prompts)),
        last_of_(static_cast<std::size_t>(num_conversations), -1) {}

  std::vector<std::int64_t> ids_of(const Turn& turn, const Trace& trace) {
    const std::int64_t num_blocks = (turn.input + block_tokens_ - 1) / block_tokens_;
    std::vector<std::int64_t> ids;
    ids.reserve(static_cast<std::size_t>(num_blocks));
    std::int64_t& last = last_of_[static_cast<std::size_t>(turn.conversation)];
    std::vector<std::int64_t>& system = systems_[static_cast<std::size_t>(turn.system)];
    if (last < 0) {
      while (std::ssize(system) < turn.num_shared) system.push_back(next_++);
    }
    const std::vector<std::int64_t>& before =
        last < 0 ? system : trace[static_cast<std::size_t>(last)].hash_ids;
    const std::int64_t num_shared = std::min({turn.num_shared, num_blocks, std::ssize(before)});
    ids.assign(before.begin(), before.begin() + num_shared);
    while (std::ssize(ids) < num_blocks) ids.push_back(next_++);
    last = std::ssize(trace);
    return ids;
  }

 private:
  std::int64_t block_tokens_;
  std::int64_t next_ = 0;
  std::vector<std::vector<std::int64_t>> systems_;
  std::vector<std::int64_t> last_of_;  // [num_conversations] request of the last turn, or -1
};

}  // namespace

Trace generate_trace(const GeneratorOptions& options) {
  require_valid(options);
  const ConversationMaker maker(options);
  std::vector<Turn> turns;
  std::int64_t num_conversations = 0;
  while (std::ssize(turns) < options.num_requests) maker.make(num_conversations++, turns);
  turns.resize(static_cast<std::size_t>(options.num_requests));
  std::ranges::sort(turns, {}, [](const Turn& turn) {
    return std::tuple(turn.time_ms, turn.conversation, turn.turn);
  });
  IdGiver giver(options, num_conversations);
  Trace trace;
  trace.reserve(turns.size());
  for (const Turn& turn : turns) {
    TraceRequest request{.timestamp_ms = turn.time_ms,
                         .input_length = turn.input,
                         .output_length = turn.output,
                         .hash_ids = giver.ids_of(turn, trace)};
    trace.push_back(std::move(request));
  }
  return trace;
}

}  // namespace quire::replay
