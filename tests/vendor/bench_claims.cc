// SPDX-License-Identifier: Apache-2.0
#include "vendor/bench_claims.h"

#include <gtest/gtest.h>

#include "benchmark/report_json.h"
#include "benchmark/runner.h"

namespace quire::testing {

void expect_gather_is_told(const std::string& candidate) {
  benchmark::BenchCase c = benchmark::custom_case(
      {.batch = "q5@900,q1@700*3", .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  c.c.name = "mixed";
  benchmark::BenchCase append = c;
  append.c.name = "append";
  append.operation = benchmark::Operation::kAppend;
  benchmark::RunOptions options;
  options.num_rounds = 2;
  options.cache_multiple = 0;
  options.probe_bytes = 1 << 20;
  options.probe_seconds = 1e-4;
  options.min_sample_seconds = 0;
  const benchmark::Report report =
      run_benchmarks({c, append},
                     benchmark::make_candidates(
                         {.backends = {"cpu", candidate}, .levels = {}, .num_threads = {2}}),
                     options);
  ASSERT_EQ(report.results.size(), 4U);
  for (const benchmark::Result& result : report.results) ASSERT_EQ(result.reason, "");
  const benchmark::Result& ours = report.results[0];
  EXPECT_EQ(ours.gather_seconds, 0);
  EXPECT_FALSE(ours.gather_in_seconds);
  const benchmark::Result& dense = report.results[1];
  EXPECT_GT(dense.gather_seconds, 0);
  EXPECT_TRUE(dense.gather_in_seconds);
  EXPECT_EQ(report.results[3].gather_seconds, 0);  // append gathers nothing
  const nlohmann::ordered_json document = to_json(report);
  EXPECT_EQ(document["results"][1]["gather_seconds"], dense.gather_seconds);
  EXPECT_EQ(document["results"][1]["gather_in_seconds"], true);
  EXPECT_EQ(document["results"][0]["gather_in_seconds"], false);
}

}  // namespace quire::testing
