// SPDX-License-Identifier: Apache-2.0
#include "replay/workload.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "replay/mix.h"

namespace quire::replay {
namespace {

constexpr int kTokenBits = 24;
// What a number stands for, so that no two kinds of token come from one seed.
enum class Kind : std::uint64_t { kBlock = 1, kUnshared = 2, kOutput = 3, kPriority = 4 };

std::uint64_t seed_of(std::uint64_t seed, Kind kind, std::int64_t index) {
  return mix(mix(seed * 8 + static_cast<std::uint64_t>(kind)) + static_cast<std::uint64_t>(index));
}

Token token_at(std::uint64_t seed, std::int64_t position) {
  return static_cast<Token>(mix(seed + static_cast<std::uint64_t>(position)) >> (64 - kTokenBits));
}

std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

Workload::Workload(Trace trace, const WorkloadOptions& options)
    : trace_(std::move(trace)), options_(options) {
  require(options.scale >= 1 && options.block_tokens % options.scale == 0 &&
              (options.scale == 1 || options.block_tokens / options.scale >= kMinBlockTokens),
          "the scale must divide the ", options.block_tokens, " tokens of one hash id and leave ",
          kMinBlockTokens, " or more of them, is ", options.scale);
  require(options.time_scale >= kMinTimeScale && options.time_scale <= kMaxTimeScale,
          "the time scale must be between ", kMinTimeScale, " and ", kMaxTimeScale, ", is ",
          options.time_scale);
  require(options.num_priorities >= 1 && options.num_priorities <= kMaxPriorities,
          "the number of priorities must be between 1 and ", kMaxPriorities, ", is ",
          options.num_priorities);
  for (std::int64_t i = 0; i < size(); ++i) {
    max_length_ = std::max(max_length_, input_length(i) + output_length(i));
  }
}

std::int64_t Workload::input_length(std::int64_t index) const {
  return divide_up(at(index).input_length, options_.scale);
}

std::int64_t Workload::output_length(std::int64_t index) const {
  return divide_up(at(index).output_length, options_.scale);
}

double Workload::arrival_s(std::int64_t index) const {
  return static_cast<double>(at(index).timestamp_ms) / 1000 / options_.time_scale;
}

std::int32_t Workload::priority(std::int64_t index) const {
  const std::uint64_t random = seed_of(options_.seed, Kind::kPriority, index);
  return static_cast<std::int32_t>(random % static_cast<std::uint64_t>(options_.num_priorities));
}

void Workload::write_prompt(std::int64_t index, std::vector<Token>& tokens) const {
  tokens.resize(static_cast<std::size_t>(input_length(index)));
  const std::vector<std::int64_t>& ids = at(index).hash_ids;
  if (ids.empty()) {
    const std::uint64_t seed = seed_of(options_.seed, Kind::kUnshared, index);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = token_at(seed, static_cast<std::int64_t>(i));
    }
    return;
  }
  const auto block = static_cast<std::size_t>(options_.block_tokens / options_.scale);
  for (std::size_t b = 0; b < ids.size(); ++b) {
    const std::uint64_t seed = seed_of(options_.seed, Kind::kBlock, ids[b]);
    const std::size_t end = std::min((b + 1) * block, tokens.size());
    for (std::size_t i = b * block; i < end; ++i) {
      tokens[i] = token_at(seed, static_cast<std::int64_t>(i - b * block));
    }
  }
}

Token Workload::output_token(std::int64_t index, std::int64_t position) const {
  return token_at(seed_of(options_.seed, Kind::kOutput, index), position);
}

}  // namespace quire::replay
