// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

TEST(CpuFeatures, AgreesWithTheCompilersOwnDetection) {
  const CpuFeatures features = detect_cpu_features();
  EXPECT_GE(features.num_cpus, 1);
#if defined(__x86_64__)
  __builtin_cpu_init();
  EXPECT_EQ(features.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(features.avx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ(features.avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(features.avx512_vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
  EXPECT_FALSE(features.vendor.empty());
#else
  GTEST_SKIP() << "no CPUID on this architecture";
#endif
}

TEST(CpuFeatures, NamesWhatIsPresentAndNothingElse) {
  CpuFeatures features;
  EXPECT_TRUE(feature_names(features).empty());
  features.avx2 = true;
  features.sha = true;
  EXPECT_EQ(feature_names(features), (std::vector<std::string>{"avx2", "sha"}));
}

}  // namespace
}  // namespace quire
