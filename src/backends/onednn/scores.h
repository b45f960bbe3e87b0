// SPDX-License-Identifier: Apache-2.0
// What happens to one row of scores between the product with the keys and the softmax. Plain loops
// over floats that compilers make vectors of. No exceptions, no allocation.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "quire/dtype.h"

namespace quire::onednn {

struct ScoreRow {
  float* scores = nullptr;    // [row_keys]
  std::int64_t num_keys = 0;  // those past them are padding
  std::int64_t row_keys = 0;
};

void scale_scores(float* scores, std::int64_t count, float factor) noexcept;

// Multiplies the scores of `seen` and hides all others, whatever they hold. Padding is hidden too.
void keep_range(const ScoreRow& row, float factor, KeyRange seen) noexcept;

// scores * factor + mask ([num_keys]), hidden where the mask is -inf. Padding is hidden too.
void add_mask(const ScoreRow& row, float factor, const float* mask) noexcept;

// The largest score, NaN if one is NaN, -inf if all are hidden.
float row_maximum(const ScoreRow& row) noexcept;

// Returns a key whose score is `maximum`. A row without one, hidden or NaN, is filled with zeros,
// so that its softmax is defined; what it would give must not be used.
std::int64_t close_row(const ScoreRow& row, float maximum) noexcept;

// Element row * row_keys + j of `out` = weight j of the row * factor, rounded to a 16-bit format.
void round_weights(const ScoreRow& weights, float factor, DType dtype, void* out,
                   std::int64_t row) noexcept;

}  // namespace quire::onednn
