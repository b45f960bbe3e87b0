// SPDX-License-Identifier: Apache-2.0
// A trace as requests with tokens: every hash id stands for fixed tokens, made when they are
// needed.
//
// Lengths may be divided by a scale that divides the tokens of one id, so that prompts that share
// blocks share them still. Immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/kv_ids.h"
#include "replay/trace.h"

namespace quire::replay {

// Fewer tokens could not tell ids apart.
inline constexpr std::int64_t kMinBlockTokens = 4;
inline constexpr double kMinTimeScale = 1e-3;
inline constexpr double kMaxTimeScale = 1e6;
inline constexpr int kMaxPriorities = 1000;

struct WorkloadOptions {
  std::int64_t scale = 1;                         // lengths are divided by it, rounded up
  std::int64_t block_tokens = kTraceBlockTokens;  // of one hash id, before scaling
  double time_scale = 1;                          // arrivals come so many times as fast
  int num_priorities = 1;                         // classes, drawn for every request
  std::uint64_t seed = 1;                         // of tokens and classes
};

class Workload {
 public:
  // REQUIRES: scale divides block_tokens and leaves kMinBlockTokens, so that different ids have
  // different tokens; throws otherwise.
  Workload(Trace trace, const WorkloadOptions& options);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(trace_.size()); }
  std::int64_t input_length(std::int64_t index) const;
  std::int64_t output_length(std::int64_t index) const;
  std::int64_t max_length() const noexcept { return max_length_; }  // of input and output
  double arrival_s(std::int64_t index) const;
  std::int32_t priority(std::int64_t index) const;

  void write_prompt(std::int64_t index, std::vector<Token>& tokens) const;
  // The token that the model makes at `position` of the answer.
  Token output_token(std::int64_t index, std::int64_t position) const;
  const WorkloadOptions& options() const noexcept { return options_; }

 private:
  const TraceRequest& at(std::int64_t index) const {
    return trace_[static_cast<std::size_t>(index)];
  }

  Trace trace_;
  WorkloadOptions options_;
  std::int64_t max_length_ = 0;
};

}  // namespace quire::replay
