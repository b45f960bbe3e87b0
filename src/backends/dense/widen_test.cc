// SPDX-License-Identifier: Apache-2.0
// Every code of every format, against the one definition.
#include "backends/dense/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/number_formats.h"

namespace quire::dense {
namespace {

TEST(Widen, EveryCode) {
  std::vector<std::uint16_t> codes(1 << 16);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    // 8-bit formats read the same bytes, all of which occur.
    for (const std::int64_t offset : {0, 1, 5}) {
      const std::int64_t count = (1 << 16) - 8 - offset;
      std::vector<float> out(static_cast<std::size_t>(count) + 1, 77.0F);
      widen(dtype, codes.data(), offset, count, out.data());
      EXPECT_EQ(out.back(), 77.0F);
      for (std::int64_t i = 0; i < count; ++i) {
        const float want = load_float(dtype, codes.data(), offset + i);
        const float got = out[static_cast<std::size_t>(i)];
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got)) << dtype_name(dtype) << " " << offset + i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want))
              << dtype_name(dtype) << " " << offset + i;
        }
      }
    }
  }
}

TEST(Widen, FloatsAreCopied) {
  const std::vector<float> in = {1, 2, 3, 4, 5};
  std::vector<float> out(3);
  widen(DType::kF32, in.data(), 1, 3, out.data());
  EXPECT_EQ(out, (std::vector<float>{2, 3, 4}));
}

}  // namespace
}  // namespace quire::dense
