// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quire::onednn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Row {
  std::vector<float> scores = std::vector<float>(128, kNaN);
  ScoreRow view{scores.data(), 70, 128};

  Row() {
    for (std::size_t j = 0; j < 70; ++j) scores[j] = static_cast<float>(j) - 30;
  }
};

TEST(Scores, WhatIsOutsideOfARangeIsHidden) {
  Row row;
  row.scores[5] = kNaN;
  keep_range(row.view, 2.0F, {10, 50});
  for (std::size_t j = 0; j < 128; ++j) {
    const float want = j >= 10 && j < 50 ? 2 * (static_cast<float>(j) - 30) : -kInfinity;
    EXPECT_EQ(row.scores[j], want) << j;
  }
  EXPECT_EQ(row_maximum(row.view), 38.0F);
  EXPECT_EQ(close_row(row.view, 38.0F), 49);
}

TEST(Scores, AMaskHidesEvenNaN) {
  Row row;
  std::vector<float> mask(70, 0.5F);
  mask[69] = -kInfinity;
  mask[3] = -kInfinity;
  row.scores[3] = kNaN;
  row.scores[69] = kInfinity;
  add_mask(row.view, 3.0F, mask.data());
  EXPECT_EQ(row.scores[3], -kInfinity);
  EXPECT_EQ(row.scores[69], -kInfinity);
  EXPECT_EQ(row.scores[70], -kInfinity);
  EXPECT_EQ(row.scores[68], 114.5F);
  EXPECT_EQ(row_maximum(row.view), 114.5F);
}

TEST(Scores, EmptyRowsAndNaNAreToldApart) {
  Row row;
  keep_range(row.view, 1.0F, {20, 20});
  EXPECT_EQ(row_maximum(row.view), -kInfinity);
  EXPECT_EQ(close_row(row.view, -kInfinity), 0);
  EXPECT_EQ(row.scores, std::vector<float>(128, 0.0F));
  for (const std::size_t place : {0, 17, 69}) {
    Row other;
    other.scores[place] = kNaN;
    keep_range(other.view, 1.0F, {0, 70});
    EXPECT_TRUE(std::isnan(row_maximum(other.view))) << place;
    close_row(other.view, kNaN);
    EXPECT_EQ(other.scores, std::vector<float>(128, 0.0F));
  }
  Row infinite;
  infinite.scores[4] = kInfinity;
  keep_range(infinite.view, 1.0F, {0, 70});
  EXPECT_EQ(row_maximum(infinite.view), kInfinity);
  EXPECT_EQ(close_row(infinite.view, kInfinity), 4);
}

TEST(Scores, WeightsAreScaledAndRoundedOnce) {
  Row row;
  std::vector<std::uint16_t> out(2 * 128, 0x1234);
  for (float& weight : row.scores) weight = 0.3F;
  row.scores[7] = 0.6F;
  round_weights(row.view, 1 / 0.6F, DType::kBF16, out.data(), 1);
  EXPECT_EQ(out[127], 0x1234);
  EXPECT_EQ(out[128], 0x3f00);      // 0.5
  EXPECT_EQ(out[128 + 7], 0x3f80);  // 1
  EXPECT_EQ(out[255], 0x3f00);
}

}  // namespace
}  // namespace quire::onednn
