// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/merge_partials.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/attend_call.h"
#include "base/float_rows.h"

namespace quire::cpu {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// A NaN among the partials must reach the result, so it wins.
constexpr float larger_or_nan(float a, float b) noexcept {
  return a > b || a != a ? a : b;
}

// Dims that are summed at once, on the stack.
constexpr std::int64_t kDimTile = 128;

float lse_at(const TensorView& lse, std::int64_t row, std::int64_t head) {
  return static_cast<const float*>(lse.data)[row * lse.strides[0] + head * lse.strides[1]];
}

}  // namespace

void merge_partials_row(std::span<const Partial> partials, ArrayView<float> sinks,
                        const AttentionOutput& output, std::int64_t row,
                        std::int64_t head) noexcept {
  // out = sum of out_i e^(lse_i - lse), lse = log of the sum of e^lse_i. Empty ones do not take
  // part, whatever their out holds.
  float max = kNegativeInfinity;
  for (const Partial& part : partials) max = larger_or_nan(lse_at(part.lse, row, head), max);
  float weight_sum = 0.0F;
  for (const Partial& part : partials) {
    const float lse = lse_at(part.lse, row, head);
    if (lse != kNegativeInfinity) weight_sum += std::exp(lse - max);
  }
  const bool empty = max == kNegativeInfinity;
  const float lse = empty ? kNegativeInfinity : max + std::log(weight_sum);
  float factor = empty ? 0.0F : 1.0F / weight_sum;
  if (!empty && !sinks.empty()) factor /= 1.0F + std::exp(sinks[head] - lse);

  const MutableTensorView& out = output.out;
  const std::int64_t out_row = row * out.strides[0] + head * out.strides[1];
  for (std::int64_t begin = 0; begin < out.shape[2]; begin += kDimTile) {
    const std::int64_t dims = std::min(kDimTile, out.shape[2] - begin);
    float sum[kDimTile] = {};
    float values[kDimTile];
    for (const Partial& part : partials) {
      const float part_lse = lse_at(part.lse, row, head);
      if (part_lse == kNegativeInfinity) continue;
      const float weight = std::exp(part_lse - max);
      const std::int64_t part_row = row * part.out.strides[0] + head * part.out.strides[1];
      load_floats(part.out.dtype, part.out.data, part_row + begin, dims, values);
      for (std::int64_t d = 0; d < dims; ++d) sum[d] += weight * values[d];
    }
    for (std::int64_t d = 0; d < dims; ++d) sum[d] *= factor;
    store_floats(out.dtype, out.data, out_row + begin, dims, sum);
  }
  if (output.lse.present()) {
    const std::int64_t offset = row * output.lse.strides[0] + head * output.lse.strides[1];
    static_cast<float*>(output.lse.data)[offset] = lse;
  }
}

}  // namespace quire::cpu
