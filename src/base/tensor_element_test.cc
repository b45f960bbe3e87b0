// SPDX-License-Identifier: Apache-2.0
#include "base/tensor_element.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

namespace quire {
namespace {

float stored_as(DType dtype, double x) {
  std::array<float, 1> storage{};
  const MutableTensorView tensor(storage.data(), dtype, {1});
  store_element(tensor, x, 0);
  return load_element(tensor, 0);
}

TEST(TensorElementTest, IndexFollowsTheStrides) {
  std::array<float, 24> data{};
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  TensorView tensor(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_EQ(load_element(tensor, 1, 2, 3), 23);
  EXPECT_EQ(load_element(tensor, 1, 0, 2), 14);
  tensor.strides = {1, 0, 5};
  EXPECT_EQ(load_element(tensor, 1, 2, 3), 16);
}

std::string refusal_of(std::initializer_list<std::int64_t> shape) {
  try {
    const TensorView tensor(nullptr, DType::kF32, shape);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TensorElementTest, DenseStridesFit64Bits) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 31;
  EXPECT_EQ(refusal_of({kLarge, kLarge - 1}), "");
  EXPECT_EQ(refusal_of({kLarge, 0, kLarge, kLarge - 1}), "");
  EXPECT_EQ(refusal_of({2, kLarge, kLarge}),
            "axis 0 of a tensor has an extent whose elements 64 bits cannot count: 2");
  EXPECT_EQ(refusal_of({1, kLarge, kLarge, kLarge}),
            "axis 1 of a tensor has an extent whose elements 64 bits cannot count: 2147483648");
  EXPECT_EQ(refusal_of({4, -5, 6}), "axis 1 of a tensor has an extent below 0: -5");
  EXPECT_EQ(refusal_of({1, 1, 1, 1, 1, 1}), "a tensor has at most 5 axes, not 6");
}

// Just above the middle of 1 and its neighbour in the format; f32 cannot hold the difference, so a
// rounding to nearest on the way would make it a tie, and the tie goes down to 1.
TEST(TensorElementTest, RoundsOnce) {
  EXPECT_EQ(stored_as(DType::kF16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10F);
  EXPECT_EQ(stored_as(DType::kF16, 1 + 0x1p-11), 1);
  EXPECT_EQ(stored_as(DType::kF16, -(1 + 0x1p-11 + 0x1p-40)), -(1 + 0x1p-10F));
  EXPECT_EQ(stored_as(DType::kBF16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7F);
  EXPECT_EQ(stored_as(DType::kBF16, 1 + 0x1p-8), 1);
  // And just below a tie that would go up.
  EXPECT_EQ(stored_as(DType::kF16, 1 + 3 * 0x1p-11 - 0x1p-40), 1 + 0x1p-10F);
  EXPECT_EQ(stored_as(DType::kF16, 1 + 3 * 0x1p-11), 1 + 2 * 0x1p-10F);
}

TEST(TensorElementTest, NearestInF32) {
  EXPECT_EQ(stored_as(DType::kF32, 1 + 0x1p-24), 1);
  EXPECT_EQ(stored_as(DType::kF32, 1 + 0x1p-24 + 0x1p-50), 1 + 0x1p-23F);
}

TEST(TensorElementTest, EndsOfTheRange) {
  EXPECT_EQ(stored_as(DType::kF16, 65519.9999), 65504);
  EXPECT_EQ(stored_as(DType::kF16, 65520), HUGE_VALF);
  EXPECT_EQ(stored_as(DType::kF16, 1e300), HUGE_VALF);
  EXPECT_EQ(stored_as(DType::kF16, 1e-300), 0);
  EXPECT_EQ(stored_as(DType::kF16, 0x1p-25 * (1 + 0x1p-40)), 0x1p-24F);  // smallest subnormal
  EXPECT_EQ(stored_as(DType::kBF16, -HUGE_VAL), -HUGE_VALF);
  EXPECT_TRUE(std::signbit(stored_as(DType::kBF16, -0.0)));
  EXPECT_TRUE(std::isnan(stored_as(DType::kBF16, std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace
}  // namespace quire
