// SPDX-License-Identifier: Apache-2.0
// What a trace is like, in the figures that the generator is fitted to.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "replay/trace.h"

namespace quire::replay {

inline constexpr std::array<double, 7> kShownPercents = {0, 10, 50, 90, 95, 99, 100};

// The smallest value that at least `percent` of the values do not exceed.
// REQUIRES: sorted, not empty.
double quantile(const std::vector<double>& sorted, double percent);

struct Summary {
  std::int64_t count = 0;
  double mean = 0;
  std::array<double, kShownPercents.size()> quantiles{};  // of kShownPercents
};
Summary summarize(std::vector<double> values);

struct TraceStatistics {
  std::int64_t num_requests = 0;
  double duration_s = 0;  // from the first to the last arrival
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  Summary input_length;
  Summary output_length;

  // By the ids: a request goes on with the conversation of the last request that shares most of its
  // beginning, if that is more than the first block. All zero without ids.
  std::int64_t num_conversations = 0;
  double mean_turns = 0;
  double single_turn_share = 0;  // of the conversations
  Summary turn_gap_s;
  std::int64_t num_block_refs = 0;
  std::int64_t num_distinct_blocks = 0;
  std::int64_t num_full_blocks = 0;
  std::int64_t num_ideal_hits = 0;  // full blocks that a cache of any size has, in order
};

TraceStatistics measure(const Trace& trace, std::int64_t block_tokens = kTraceBlockTokens);

}  // namespace quire::replay
