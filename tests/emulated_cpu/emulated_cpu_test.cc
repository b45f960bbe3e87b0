// SPDX-License-Identifier: Apache-2.0
// The levels avx512_bf16 and amx with their instructions in software: what machines without them
// can say about that code. The suite is smoke and a choice of standard; QUIRE_SUITE=full takes all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "base/cpu_features.h"
#include "conformance/case_list.h"
#include "conformance/run.h"

namespace quire::conformance {
namespace {

// Of standard: what goes through the tiles, the pairs and the panels in ways of its own.
constexpr std::string_view kChoice =
    "*/types/bf16_*,*/data/*,*/head_dim/*,*/v_in_k/*,*/group/*,*/block_size/*,prefill/length/*,"
    "prefill/mask/*,prefill/cache/*,decode/verify/*,mixed/*";

bool all_asked_for() {
  const char* suite = std::getenv("QUIRE_SUITE");
  return suite != nullptr && std::string_view(suite) == suite_name(Suite::kFull);
}

class EmulatedLevel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const CpuFeatures features = detect_cpu_features();
    if (!features.avx512 || !features.avx512_vbmi) {
      GTEST_SKIP() << "no AVX-512 with VBMI on this machine, which the emulation is made of";
    }
    BackendOptions options;
    options.isa = GetParam();
    options.num_threads = 2;
    backend_ = make_cpu_backend(options);
  }

  // Runs the cases; returns how many were not refused.
  int expect_passed(const std::vector<Case>& cases) {
    int num_run = 0;
    for (const Case& c : cases) {
      const CaseResult result = CaseRunner(c).run(*backend_);
      EXPECT_NE(result.status, CaseStatus::kFailed) << c.name << ": " << result.reason;
      num_run += result.status == CaseStatus::kPassed ? 1 : 0;
    }
    return num_run;
  }

  std::unique_ptr<AttentionBackend> backend_;
};

TEST_P(EmulatedLevel, IsTheOneAskedFor) {
  EXPECT_EQ(backend_->info().isa, GetParam());
}

TEST_P(EmulatedLevel, PassesTheSuite) {
  const Suite suite = all_asked_for() ? Suite::kFull : Suite::kSmoke;
  EXPECT_GT(expect_passed(select(all_cases(), suite)), 50);
}

// Long prompts, splits, 8-bit formats, values that are not finite, caches of the caller.
TEST_P(EmulatedLevel, PassesAChoiceOfStandardCases) {
  if (all_asked_for()) GTEST_SKIP() << "part of the full suite";
  EXPECT_GT(expect_passed(select(all_cases(), Suite::kStandard, kChoice)), 50);
}

INSTANTIATE_TEST_SUITE_P(Levels, EmulatedLevel, ::testing::Values("avx512_bf16", "amx"),
                         [](const auto& level) { return std::string(level.param); });

}  // namespace
}  // namespace quire::conformance
