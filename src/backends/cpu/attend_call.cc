// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/attend_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_rows.h"

namespace quire::cpu {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// The pieces of a scratch in order. Both its size and its addresses come from here.
struct ScratchLayout {
  std::int64_t q, rows, k_t, scores, states, total;
};

ScratchLayout scratch_layout(const AttentionSpec& spec) {
  std::int64_t used = 0;
  const auto take = [&used](std::int64_t count) {
    const std::int64_t begin = used;
    used += (count + 15) / 16 * 16;  // cache lines
    return begin;
  };
  ScratchLayout layout{};
  layout.q = take(kRowTile * spec.head_dim);
  layout.rows = take(kKeyTile * std::max(spec.head_dim, spec.value_dim));
  layout.k_t = take(kKeyTile * spec.head_dim);
  layout.scores = take(kKeyTile);
  layout.states = take(kRowTile * row_state_stride(spec.value_dim));
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
          .rows = memory + layout.rows,
          .k_t = memory + layout.k_t,
          .scores = memory + layout.scores,
          .states = {.data = memory + layout.states,
                     .value_dim = spec.value_dim,
                     .stride = row_state_stride(spec.value_dim)}};
}

void store_rows(const AttendCall& call, const RowTile& tile, const RowStates& states) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t value_dim = call.spec.value_dim;
  const std::int64_t first_token = call.batch.queries.begins[tile.sequence];
  const MutableTensorView& out = call.output.out;
  const MutableTensorView& lse_out = call.output.lse;
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const std::int64_t r = row - tile.row_begin;
    const std::int64_t token = first_token + row / group;
    const std::int64_t head = tile.kv_head * group + row % group;
    const bool empty = states.max(r) == kNegativeInfinity;
    const float lse = empty ? kNegativeInfinity : states.max(r) + std::log(states.sum(r));
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
    const float max = larger_or_nan(part.max(r), total.max(r));
    const float part_factor = std::exp(part.max(r) - max);
    const float total_factor = std::exp(total.max(r) - max);
    total.max(r) = max;
    total.sum(r) = total.sum(r) * total_factor + part.sum(r) * part_factor;
    float* o = total.o(r);
    const float* add = part.o(r);
    for (std::int64_t d = 0; d < total.value_dim; ++d) {
      o[d] = o[d] * total_factor + add[d] * part_factor;
    }
  }
}

}  // namespace quire::cpu
