// SPDX-License-Identifier: Apache-2.0
// The backend `onednn` through its plug-in: all of the contract, whatever the number of threads;
// and its cache of primitives, by itself.
#include <gtest/gtest.h>

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "backends/onednn/onednn_backend.h"
#include "backends/onednn/primitives.h"
#include "backends/onednn/serial_region.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "quire/registry.h"
#include "vendor/bench_claims.h"
#include "vendor/suite_claims.h"

namespace quire::testing {
namespace {

TEST(Onednn, PassesAllOfTheContract) {
  const std::unique_ptr<AttentionBackend> backend = make_backend("onednn");
  EXPECT_EQ(backend->info().version, onednn_version());
  const conformance::RunSummary summary = expect_claims(*backend, {});
  EXPECT_GE(summary.num_passed, 928);
  for (const FeatureProbe& probe : feature_probes()) {
    EXPECT_TRUE(backend->supports(probe.spec).ok()) << probe.name;
  }
}

// On a machine whose oneDNN has no fast 16-bit products too, what it does has to be right
// elsewhere.
TEST(Onednn, ProductsOfBf16) {
  const std::unique_ptr<AttentionBackend> backend = make_onednn_backend_in_format({});
  conformance::RunSummary summary;
  for (const conformance::Case& c : conformance::all_cases()) {
    const AttentionSpec& spec = c.spec;
    const bool special = spec.features.lse || spec.features.sinks || spec.features.softcap;
    if (c.suite == conformance::Suite::kFull || c.check != conformance::Check::kAttend) continue;
    if (c.suite == conformance::Suite::kStandard && !special) continue;
    if (spec.q_dtype != DType::kBF16 || spec.kv.dtype != DType::kBF16) continue;
    const conformance::CaseResult result = run_case(*backend, c);
    summary.add(result);
    EXPECT_EQ(result.status, conformance::CaseStatus::kPassed) << c.name << ": " << result.reason;
  }
  EXPECT_GE(summary.num_passed, 60);
  expect_not_finite_stays_put(*backend, DType::kBF16);
}

TEST(Onednn, BitsDoNotDependOnThreads) {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  for (const int num_threads : {1, 2, 5}) {
    backends.push_back(make_backend("onednn", {.num_threads = num_threads, .isa = {}}));
  }
  int num_cases = 0;
  for (const conformance::Case& c : conformance::all_cases()) {
    if (c.check != conformance::Check::kInvariance) continue;
    if (c.suite == conformance::Suite::kFull) continue;
    ++num_cases;
    const conformance::CaseRunner runner(c);
    const std::uint64_t digest = runner.run(*backends[0]).digest;
    EXPECT_NE(digest, 0U);
    for (const auto& backend : backends) EXPECT_EQ(runner.run(*backend).digest, digest) << c.name;
  }
  EXPECT_GT(num_cases, 0);
}

TEST(Onednn, NotFiniteStaysPut) {
  const std::unique_ptr<AttentionBackend> backend = make_backend("onednn");
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    expect_not_finite_stays_put(*backend, dtype);
  }
}

TEST(Onednn, BenchTellsItsGather) {
  expect_gather_is_told("onednn");
}

onednn::TileShape small_shape() {
  return {.compute = DType::kF32, .head_dim = 16, .value_dim = 16, .num_rows = 4, .row_keys = 64};
}

TEST(Onednn, PrimitivesAreKeptByUseAndBounded) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  onednn::PrimitiveCache cache(engine);
  onednn::TileShape shape = small_shape();
  const auto first = cache.find(shape);
  EXPECT_EQ(cache.find(shape), first);
  EXPECT_EQ(cache.size(), 1U);
  constexpr int kMore = static_cast<int>(onednn::PrimitiveCache::kMaxShapes);
  for (int i = 1; i < kMore; ++i) {
    shape.num_rows = 4 + i;
    cache.find(shape);
  }
  EXPECT_EQ(cache.size(), onednn::PrimitiveCache::kMaxShapes);
  EXPECT_EQ(cache.find(small_shape()), first);  // now the last that would go
  shape.num_rows = 4 + kMore;
  cache.find(shape);
  EXPECT_EQ(cache.size(), onednn::PrimitiveCache::kMaxShapes);
  EXPECT_EQ(cache.find(small_shape()), first);
}

TEST(Onednn, ItsErrorsNameTheShape) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  onednn::PrimitiveCache cache(engine);
  onednn::TileShape shape = small_shape();
  shape.head_dim = -3;
  try {
    cache.find(shape);
    FAIL() << "oneDNN took a negative dim";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(std::string(error.what()).find("f32 rows 4 keys 64 dims -3/16"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(cache.size(), 0U);
}

TEST(Onednn, KeyBucketsGrowWithTheKeys) {
  std::int64_t before = 0;
  for (std::int64_t keys = 1; keys <= 9000; ++keys) {
    const std::int64_t bucket = onednn::key_bucket(keys);
    EXPECT_GE(bucket, keys);
    EXPECT_GE(bucket, before);
    EXPECT_EQ(bucket % 64, 0);
    EXPECT_LE(bucket - keys, std::max<std::int64_t>(63, keys / 4)) << keys;
    EXPECT_EQ(onednn::key_bucket(bucket), bucket);
    before = bucket;
  }
}

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
TEST(Onednn, TheSettingOfTheCallerComesBack) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  {
    const onednn::SerialRegion serial;
    EXPECT_EQ(omp_get_max_threads(), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}
#endif

}  // namespace
}  // namespace quire::testing
