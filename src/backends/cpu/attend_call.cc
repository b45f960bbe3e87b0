// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/attend_call.h"

#include <algorithm>

namespace quire::cpu {
namespace {

// The pieces of a scratch in order. Both its size and its addresses come from here.
struct ScratchLayout {
  std::int64_t q, scores, weights, k, v, sums, states, total;
};

ScratchLayout scratch_layout(const AttentionSpec& spec) {
  constexpr std::int64_t kLineFloats = 16;
  std::int64_t used = 0;
  const auto take = [&used](std::int64_t count) {
    const std::int64_t begin = used;
    used += round_up(count, kLineFloats);
    return begin;
  };
  ScratchLayout layout{};
  layout.q = take(kMaxStateRows * padded_dims(spec.head_dim));
  layout.scores = take(kMaxScores);
  layout.weights = take(kMaxScores);
  layout.k = take(padded_dims(spec.head_dim) * kMaxChunk);
  layout.v = take(kMaxChunk * padded_dims(spec.value_dim));
  layout.sums = take(kMaxStateRows * kMaxLanes);
  layout.states = take(kMaxStateRows * row_state_stride(spec.value_dim));
  layout.total = used;
  return layout;
}

}  // namespace

std::int64_t scratch_floats(const AttentionSpec& spec) {
  return scratch_layout(spec).total;
}

Scratch scratch_at(float* memory, const AttentionSpec& spec) {
  const ScratchLayout layout = scratch_layout(spec);
  return {.q = memory + layout.q,
          .scores = memory + layout.scores,
          .weights = memory + layout.weights,
          .k = memory + layout.k,
          .v = memory + layout.v,
          .sums = memory + layout.sums,
          .states = {.data = memory + layout.states,
                     .value_dim = spec.value_dim,
                     .stride = row_state_stride(spec.value_dim)}};
}

Scratch scratch_of_item(const Scratch& scratch, const AttentionSpec& spec, const WorkItem& item,
                        std::int64_t i) noexcept {
  const std::int64_t rows = i * item_state_rows(item.kv_heads.size(), item.rows.size());
  Scratch own = scratch;
  own.q += rows * padded_dims(spec.head_dim);
  own.sums += rows * kMaxLanes;
  own.states = scratch.states.from(rows);
  return own;
}

}  // namespace quire::cpu
