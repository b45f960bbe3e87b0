// SPDX-License-Identifier: Apache-2.0
// Rows of masks against the predicate of mask.h and the formula of the contract, over small shapes.
#include "backends/dense/mask_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"

namespace quire::dense {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kNumHeads = 3;
constexpr std::int64_t kMaxQueries = 6;
constexpr std::int64_t kMaxKeys = 11;

// Bias of every (sequence, head, query, key), some of it hiding.
std::vector<float> make_bias() {
  std::vector<float> bias(2 * kNumHeads * kMaxQueries * kMaxKeys);
  for (std::size_t i = 0; i < bias.size(); ++i) {
    bias[i] = i % 7 == 0 ? -kInfinity : static_cast<float>(i % 13) - 6;
  }
  return bias;
}

const std::vector<float> kSlopes = {0.5F, 0.25F, 2.0F};

float expected_mask(const MaskRows& rows, std::int64_t head, std::int64_t i, std::int64_t j) {
  if (!is_visible(rows.mask, rows.alignment, rows.sequence, i, j)) return -kInfinity;
  float sum = 0;
  if (!rows.params.alibi_slopes.empty()) {
    const std::int64_t distance = query_position(rows.sequence, i) - key_position(rows.sequence, j);
    sum -= rows.params.alibi_slopes[head] * std::abs(static_cast<float>(distance));
  }
  if (rows.params.bias.present()) {
    const TensorView& bias = rows.params.bias;
    sum += static_cast<const float*>(bias.data)[rows.s * bias.strides[0] + head * bias.strides[1] +
                                                i * bias.strides[2] + j * bias.strides[3]];
  }
  return sum;
}

void expect_rows(const MaskRows& rows, KeyRange keys) {
  for (std::int64_t head = 0; head < kNumHeads; ++head) {
    for (std::int64_t i = 0; i < rows.sequence.q_len; ++i) {
      std::vector<float> row(static_cast<std::size_t>(keys.size()) + 1, 77.0F);
      fill_mask_row(rows, head, i, keys, row.data());
      EXPECT_EQ(row.back(), 77.0F);
      const KeyRange range = row_range(rows, i, keys);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        const float want = expected_mask(rows, head, i, j);
        EXPECT_EQ(row[static_cast<std::size_t>(j - keys.begin)], want) << i << " " << j;
        const bool inside = j >= range.begin && j < range.end;
        if (rows.is_range()) {
          EXPECT_EQ(inside, want == 0) << i << " " << j;
        }
        if (want != -kInfinity) {
          EXPECT_TRUE(inside) << i << " " << j;
        }
        if (rows.is_shared_by_heads()) {
          EXPECT_EQ(want, expected_mask(rows, 0, i, j));
        }
      }
    }
  }
}

template <class F>
void for_each_mask(F&& f) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : {-1, 0, 2}) {
      for (const std::int64_t right : {-1, 1}) {
        for (const std::int64_t chunk : {0, 3}) f(Mask{causal, left, right, chunk});
      }
    }
  }
}

template <class F>
void for_each_params(F&& f) {
  const std::vector<float> bias = make_bias();
  for (const bool alibi : {false, true}) {
    for (const int biased : {0, 1, 2}) {
      AttentionParams params;
      if (alibi) params.alibi_slopes = kSlopes;
      if (biased != 0) {
        params.bias = TensorView(bias.data(), DType::kF32, {2, kNumHeads, kMaxQueries, kMaxKeys});
        if (biased == 2) params.bias.strides[1] = 0;
      }
      f(params);
    }
  }
}

TEST(MaskRows, EqualTheContract) {
  for_each_params([](const AttentionParams& params) {
    for_each_mask([&](const Mask& mask) {
      for (const std::int64_t q_len : {1, 4, 6}) {
        for (const std::int64_t kv_len : {0, 1, 4, 11}) {
          SCOPED_TRACE(concat("causal ", mask.causal, " window ", mask.window_left, ":",
                              mask.window_right, " chunk ", mask.chunk, " lens ", q_len, " ",
                              kv_len));
          SequenceView sequence;
          sequence.q_len = q_len;
          sequence.kv_len = kv_len;
          const MaskRows rows{mask, Alignment::kAligned, params, sequence, 1};
          expect_rows(rows, {0, kv_len});
          if (kv_len > 3) expect_rows(rows, {2, kv_len - 1});
        }
      }
    });
  });
}

TEST(MaskRows, TreesEqualTheContract) {
  const std::vector<std::uint8_t> bits = {0b0001, 0b0011, 0b0101, 0b1010};
  const std::vector<std::int32_t> depths = {0, 1, 1, 2};
  for_each_params([&](const AttentionParams& params) {
    for (const bool with_depths : {false, true}) {
      for (const std::int64_t left : {-1, 2}) {
        SequenceView sequence;
        sequence.q_len = 4;
        sequence.kv_len = 9;
        sequence.tree_bits = bits.data();
        if (with_depths) sequence.tree_depths = depths.data();
        const Mask mask{true, left, -1, 0};
        const MaskRows rows{mask, Alignment::kAligned, params, sequence, 0};
        EXPECT_FALSE(rows.is_range());
        expect_rows(rows, {0, 9});
        expect_rows(rows, {3, 8});
      }
    }
  });
}

TEST(MaskRows, UnalignedSeesAll) {
  const AttentionParams params;
  SequenceView sequence;
  sequence.q_len = 3;
  sequence.kv_len = 7;
  const Mask mask{false, -1, -1, 0};
  const MaskRows rows{mask, Alignment::kUnaligned, params, sequence, 0};
  EXPECT_TRUE(rows.is_range() && rows.is_shared_by_heads());
  expect_rows(rows, {0, 7});
}

}  // namespace
}  // namespace quire::dense
