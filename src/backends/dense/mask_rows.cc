// SPDX-License-Identifier: Apache-2.0
#include "backends/dense/mask_rows.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/number_formats.h"
#include "base/tensor_element.h"

namespace quire::dense {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// out[j - begin] = -slope * |query position - key position| for j of `seen`.
void fill_alibi(const MaskRows& rows, float slope, std::int64_t i, KeyRange seen,
                float* out) noexcept {
  const std::int64_t query = query_position(rows.sequence, i);
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    const std::int64_t distance = std::abs(query - key_position(rows.sequence, j));
    out[j - seen.begin] = -slope * static_cast<float>(distance);
  }
}

void add_bias(const MaskRows& rows, std::int64_t q_head, std::int64_t i, KeyRange seen,
              float* out) noexcept {
  const TensorView& bias = rows.params.bias;
  const std::int64_t first = element_index(bias, rows.s, q_head, i, seen.begin);
  const std::int64_t stride = bias.strides[3];
  for (std::int64_t n = 0; n < seen.size(); ++n) {
    out[n] += load_float(bias.dtype, bias.data, first + n * stride);
  }
}

}  // namespace

KeyRange row_range(const MaskRows& rows, std::int64_t i, KeyRange keys) noexcept {
  const KeyRange seen = keys_seen(rows.mask, rows.alignment, rows.sequence, i, i + 1);
  const std::int64_t begin = std::clamp(seen.begin, keys.begin, keys.end);
  return {begin, std::clamp(seen.end, begin, keys.end)};
}

void fill_mask_row(const MaskRows& rows, std::int64_t q_head, std::int64_t i, KeyRange keys,
                   float* out) noexcept {
  const KeyRange seen = row_range(rows, i, keys);
  float* first = out + (seen.begin - keys.begin);
  std::fill(out, first, kHidden);
  std::fill(first + seen.size(), out + keys.size(), kHidden);
  if (rows.params.alibi_slopes.empty()) {
    std::fill_n(first, seen.size(), 0.0F);
  } else {
    fill_alibi(rows, rows.params.alibi_slopes[q_head], i, seen, first);
  }
  if (rows.params.bias.present()) add_bias(rows, q_head, i, seen, first);
  if (!rows.has_tree()) return;
  // The range of a tree is a superset; what was read of a bias there is thrown away.
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    if (!is_visible(rows.mask, rows.alignment, rows.sequence, i, j)) {
      first[j - seen.begin] = kHidden;
    }
  }
}

}  // namespace quire::dense
