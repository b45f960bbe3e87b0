// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace quire::replay {
namespace {

// Which conversation every request belongs to.
class Conversations {
 public:
  // The blocks that were known already, from the first on.
  std::int64_t add(const TraceRequest& request) {
    std::int64_t num_known = 0;
    std::int64_t parent = -1;
    for (const std::int64_t id : request.hash_ids) {
      const auto found = last_request_of_.find(id);
      if (found == last_request_of_.end()) break;
      parent = found->second;
      ++num_known;
    }
    const auto index = static_cast<std::int64_t>(conversation_of_.size());
    if (num_known > 1) {
      const auto p = static_cast<std::size_t>(parent);
      conversation_of_.push_back(conversation_of_[p]);
      gaps_s.push_back(static_cast<double>(request.timestamp_ms - timestamps_[p]) / 1000);
    } else {
      conversation_of_.push_back(static_cast<std::int64_t>(num_turns.size()));
      num_turns.push_back(0);
    }
    ++num_turns[static_cast<std::size_t>(conversation_of_.back())];
    timestamps_.push_back(request.timestamp_ms);
    for (const std::int64_t id : request.hash_ids) last_request_of_[id] = index;
    return num_known;
  }
  std::int64_t num_distinct() const { return std::ssize(last_request_of_); }

  std::vector<std::int64_t> num_turns;  // [num_conversations]
  std::vector<double> gaps_s;

 private:
  std::unordered_map<std::int64_t, std::int64_t> last_request_of_;  // by id
  std::vector<std::int64_t> conversation_of_;                       // [num_requests]
  std::vector<std::int64_t> timestamps_;
};

}  // namespace

double quantile(const std::vector<double>& sorted, double percent) {
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

Summary summarize(std::vector<double> values) {
  Summary summary;
  summary.count = std::ssize(values);
  if (values.empty()) return summary;
  std::ranges::sort(values);
  summary.mean = std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
  for (std::size_t i = 0; i < kShownPercents.size(); ++i) {
    summary.quantiles[i] = quantile(values, kShownPercents[i]);
  }
  return summary;
}

TraceStatistics measure(const Trace& trace, std::int64_t block_tokens) {
  TraceStatistics result;
  if (trace.empty()) return result;
  result.num_requests = std::ssize(trace);
  result.duration_s =
      static_cast<double>(trace.back().timestamp_ms - trace.front().timestamp_ms) / 1000;
  std::vector<double> inputs;
  std::vector<double> outputs;
  Conversations conversations;
  for (const TraceRequest& request : trace) {
    result.prompt_tokens += request.input_length;
    result.output_tokens += request.output_length;
    inputs.push_back(static_cast<double>(request.input_length));
    outputs.push_back(static_cast<double>(request.output_length));
    result.num_full_blocks += request.input_length / block_tokens;
    if (request.hash_ids.empty()) continue;
    result.num_block_refs += std::ssize(request.hash_ids);
    // At least one token is computed, so the block of the last one never counts.
    result.num_ideal_hits +=
        std::min(conversations.add(request), (request.input_length - 1) / block_tokens);
  }
  result.input_length = summarize(std::move(inputs));
  result.output_length = summarize(std::move(outputs));
  result.num_distinct_blocks = conversations.num_distinct();
  result.num_conversations = std::ssize(conversations.num_turns);
  if (result.num_conversations == 0) return result;
  const auto num_conversations = static_cast<double>(result.num_conversations);
  result.mean_turns = static_cast<double>(result.num_requests) / num_conversations;
  result.single_turn_share =
      static_cast<double>(std::ranges::count(conversations.num_turns, 1)) / num_conversations;
  result.turn_gap_s = summarize(std::move(conversations.gaps_s));
  return result;
}

}  // namespace quire::replay
