// SPDX-License-Identifier: Apache-2.0
// A request trace: when requests came, how long they were, and which of them began alike.
//
// The Mooncake form names the content of every block of a prompt (512 tokens there) by an id; two
// prompts with equal ids up to some block are equal up to its end. docs/replay.md has the files.
#pragma once

#include <cstdint>
#include <vector>

namespace quire::replay {

struct TraceRequest {
  std::int64_t timestamp_ms = 0;
  std::int64_t input_length = 0;   // tokens of the prompt
  std::int64_t output_length = 0;  // tokens that were made
  // [ceil(input_length / block_tokens)], the last one of a block that may be partly filled; empty:
  // a trace of lengths alone, whose prompts share nothing.
  std::vector<std::int64_t> hash_ids{};

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

using Trace = std::vector<TraceRequest>;

// What one id of the Mooncake traces stands for.
inline constexpr std::int64_t kTraceBlockTokens = 512;

// Anything larger is a mistake: a hundred times the longest contexts in use, and a year.
inline constexpr std::int64_t kMaxTraceLength = 16'777'216;
inline constexpr std::int64_t kMaxTimestampMs = 366LL * 24 * 3600 * 1000;

}  // namespace quire::replay
