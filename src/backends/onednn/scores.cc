// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_rows.h"

namespace quire::onednn {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Independent maxima: one would wait for the one before it.
constexpr int kLanes = 16;

}  // namespace

void scale_scores(float* scores, std::int64_t count, float factor) noexcept {
  for (std::int64_t j = 0; j < count; ++j) scores[j] *= factor;
}

void keep_range(const ScoreRow& row, float factor, KeyRange seen) noexcept {
  std::fill(row.scores, row.scores + seen.begin, kHidden);
  scale_scores(row.scores + seen.begin, seen.size(), factor);
  std::fill(row.scores + seen.end, row.scores + row.row_keys, kHidden);
}

void add_mask(const ScoreRow& row, float factor, const float* mask) noexcept {
  float* scores = row.scores;
  for (std::int64_t j = 0; j < row.num_keys; ++j) {
    const float sum = scores[j] * factor + mask[j];
    scores[j] = mask[j] == kHidden ? kHidden : sum;
  }
  std::fill(scores + row.num_keys, scores + row.row_keys, kHidden);
}

float row_maximum(const ScoreRow& row) noexcept {
  float largest[kLanes];
  float nan_sum[kLanes] = {};  // NaN in NaN out; 0 otherwise
  std::fill_n(largest, kLanes, kHidden);
  const float* scores = row.scores;
  // row_keys is a multiple of 64.
  for (std::int64_t j = 0; j < row.row_keys; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float s = scores[j + lane];
      largest[lane] = s > largest[lane] ? s : largest[lane];
      nan_sum[lane] = s == s ? nan_sum[lane] : s;
    }
  }
  float maximum = kHidden;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (std::isnan(nan_sum[lane])) return nan_sum[lane];
    maximum = std::max(maximum, largest[lane]);
  }
  return maximum;
}

std::int64_t close_row(const ScoreRow& row, float maximum) noexcept {
  if (maximum == kHidden || std::isnan(maximum)) {
    std::fill(row.scores, row.scores + row.row_keys, 0.0F);
    return 0;
  }
  return std::find(row.scores, row.scores + row.row_keys, maximum) - row.scores;
}

void round_weights(const ScoreRow& weights, float factor, DType dtype, void* out,
                   std::int64_t row) noexcept {
  scale_scores(weights.scores, weights.row_keys, factor);
  store_floats(dtype, out, row * weights.row_keys, weights.row_keys, weights.scores);
}

}  // namespace quire::onednn
