// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/attend_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_rows.h"

namespace quire::cpu {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

constexpr float kLn2 = 0.693147180559945F;

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
  layout.scores = take(kRowTile * kMaxChunk);
  layout.weights = take(kRowTile * kMaxChunk);
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

void store_rows(const AttendCall& call, std::int64_t sequence, std::int64_t kv_head,
                const IndexRange& rows, const RowStates& states) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t value_dim = call.spec.value_dim;
  const std::int64_t first_token = call.batch.queries.begins[sequence];
  const MutableTensorView& out = call.output.out;
  const MutableTensorView& lse_out = call.output.lse;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t r = row - rows.begin;
    const std::int64_t token = first_token + row / group;
    const std::int64_t head = kv_head * group + row % group;
    const bool empty = states.max(r) == kNegativeInfinity;
    const float lse = empty ? kNegativeInfinity : (states.max(r) + std::log2(states.sum(r))) * kLn2;
    float factor = empty ? 0.0F : 1.0F / states.sum(r);
    if (!empty && !call.params.sinks.empty()) {
      factor /= 1.0F + std::exp(call.params.sinks[head] - lse);
    }
    float* o = states.o(r);
    for (std::int64_t d = 0; d < value_dim; ++d) o[d] *= factor;
    store_floats(out.dtype, out.data, token * out.strides[0] + head * out.strides[1], value_dim, o);
    if (lse_out.present()) {
      const std::int64_t offset = token * lse_out.strides[0] + head * lse_out.strides[1];
      static_cast<float*>(lse_out.data)[offset] = lse;
    }
  }
}

void merge_states(const RowStates& part, std::int64_t num_rows, const RowStates& total) noexcept {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    if (part.max(r) == kNegativeInfinity) continue;
    const float max = std::max(part.max(r), total.max(r));
    const float part_factor = std::exp2(part.max(r) - max);
    const float total_factor = std::exp2(total.max(r) - max);
    total.max(r) = max;
    total.sum(r) = total.sum(r) * total_factor + part.sum(r) * part_factor;
    float* __restrict o = total.o(r);
    const float* __restrict add = part.o(r);
    for (std::int64_t d = 0; d < total.value_dim; ++d) {
      o[d] = o[d] * total_factor + add[d] * part_factor;
    }
  }
}

}  // namespace quire::cpu
