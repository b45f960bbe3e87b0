// SPDX-License-Identifier: Apache-2.0
// The backend `torch` through its plug-in: all of the contract that scaled dot product attention
// with a mask can say, and the reasons for the rest.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backends/torch/cuda_probe.h"
#include "backends/torch/sdpa.h"
#include "backends/torch/torch_backend.h"
#include "base/cpu_features.h"
#include "quire/registry.h"
#include "vendor/bench_claims.h"
#include "vendor/suite_claims.h"

namespace quire::testing {
namespace {

using conformance::Case;

// PyTorch's f32 on CPUs that are not Intel's: 2.2e-5 where 3.4e-6 is the limit, of logits that fall
// by hundreds (PyTorch 2.15, Zen4).
std::vector<Inexact> inexact_here() {
  if (detect_cpu_features().vendor == "GenuineIntel") return {};
  return {{"prefill/data/shrinking_f32"}};
}

TEST(TorchBackend, PassesWhatAMaskCanSay) {
  const std::unique_ptr<AttentionBackend> backend =
      make_backend("torch", {.num_threads = 0, .isa = "cpu"});
  EXPECT_EQ(backend->info().version, torch_version());
  const conformance::RunSummary summary = expect_claims(
      *backend,
      {{.reason = "softcap: scaled_dot_product_attention lets nothing happen between",
        .covers = [](const Case& c) { return c.spec.features.softcap; }},
       {.reason = "does not promise batch invariance",
        .covers = [](const Case& c) { return c.check == conformance::Check::kInvariance; }}},
      inexact_here());
  EXPECT_GE(summary.num_passed + std::ssize(inexact_here()), 903);
  for (const FeatureProbe& probe : feature_probes()) {
    EXPECT_EQ(backend->supports(probe.spec).ok(), !probe.spec.features.softcap) << probe.name;
  }
}

TEST(TorchBackend, NotFiniteStaysPut) {
  const std::unique_ptr<AttentionBackend> backend =
      make_backend("torch", {.num_threads = 0, .isa = "cpu"});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    expect_not_finite_stays_put(*backend, dtype);
  }
}

TEST(TorchBackend, BenchTellsItsGather) {
  expect_gather_is_told("torch:cpu");
}

TEST(TorchBackend, ThreadsOfTheCallerComeBack) {
  const int before = at::get_num_threads();
  {
    const torch_sdpa::SerialRegion serial;
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(TorchBackend, ItsErrorsAreQuires) {
  const float zero = 0;
  float out = 0;
  const torch_sdpa::Problem problem{
      .rows = 1, .keys = 1, .dims = -1, .q = &zero, .k = &zero, .v = &zero};
  try {
    torch_sdpa::run(problem, &out, nullptr);
    FAIL() << "torch took a negative dim";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(std::string(error.what()).find(torch_version()), std::string::npos) << error.what();
  }
}

TEST(TorchBackend, ComputesWhereItCan) {
  const auto code = [](const char* level) {
    BackendOptions options;
    options.isa = level;
    try {
      static_cast<void>(make_backend("torch", options));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kOk;
  };
  const std::vector<std::string> levels = torch_levels();
  EXPECT_EQ(levels.back(), "cpu");  // best first
  EXPECT_EQ(code("cpu"), ErrorCode::kOk);
  EXPECT_EQ(code("cuda"), levels.size() == 2 ? ErrorCode::kOk : ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("tpu"), ErrorCode::kInvalidArgument);
}

// A level that is missing has a reason, in `quire info` and in the error of who asks for it.
TEST(TorchBackend, SaysWhyALevelIsMissing) {
  const std::string missing = torch_sdpa::missing_for_cuda();
  if (missing.empty()) GTEST_SKIP() << "torch can use CUDA here";
  const auto row =
      std::find_if(backend_table().begin(), backend_table().end(),
                   [](const auto& entry) { return std::string(entry.name) == "torch"; });
  ASSERT_NE(row, backend_table().end());
  const Availability availability = row->probe();
  EXPECT_TRUE(availability.available);
  EXPECT_EQ(availability.version, torch_version());
  EXPECT_EQ(availability.reasons, std::vector<std::string>{"no level cuda: " + missing});
  try {
    static_cast<void>(make_backend("torch", {.num_threads = 0, .isa = "cuda"}));
    FAIL() << "torch has a level that it does not list";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(missing), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quire::testing
