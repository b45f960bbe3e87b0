// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "quire/attention_spec.h"
#include "quire/device.h"
#include "quire/dtype.h"
#include "quire/error.h"

namespace quire {
namespace {

TEST(Names, AreThePublishedOnes) {
  EXPECT_STREQ(dtype_name(DType::kF32), "f32");
  EXPECT_STREQ(dtype_name(DType::kF16), "f16");
  EXPECT_STREQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_STREQ(dtype_name(DType::kF8E4M3), "f8e4m3");
  EXPECT_STREQ(dtype_name(DType::kF8E5M2), "f8e5m2");
  EXPECT_STREQ(dtype_name(DType::kI8), "i8");
  EXPECT_STREQ(device_kind_name(DeviceKind::kHost), "host");
  EXPECT_STREQ(device_kind_name(DeviceKind::kCuda), "cuda");
  EXPECT_STREQ(device_kind_name(DeviceKind::kRocm), "rocm");
  EXPECT_STREQ(device_kind_name(DeviceKind::kCustom), "custom");
  EXPECT_STREQ(scale_granularity_name(ScaleGranularity::kPerHead), "per-head");
}

// Every value up to the last enumerator has a name of its own; the one after it has none.
template <class Enum>
void expect_distinct(const char* (*name)(Enum), Enum last) {
  std::set<std::string> names;
  const int count = static_cast<int>(last) + 1;
  for (int i = 0; i < count; ++i) names.insert(name(static_cast<Enum>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_STREQ(name(static_cast<Enum>(count)), "unknown");
}

TEST(Names, AreDistinctAndTotal) {
  expect_distinct<DType>([](DType x) { return dtype_name(x); }, DType::kI8);
  expect_distinct<ErrorCode>([](ErrorCode x) { return error_code_name(x); }, ErrorCode::kInternal);
  expect_distinct<DeviceKind>([](DeviceKind x) { return device_kind_name(x); },
                              DeviceKind::kCustom);
  expect_distinct<ScaleGranularity>([](ScaleGranularity x) { return scale_granularity_name(x); },
                                    ScaleGranularity::kPerTokenHead);
}

}  // namespace
}  // namespace quire
