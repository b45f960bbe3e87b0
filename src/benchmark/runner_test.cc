// SPDX-License-Identifier: Apache-2.0
// Real runs of tiny cases. How long anything takes decides nothing here.
#include "benchmark/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/host_memory.h"
#include "base/number_formats.h"
#include "benchmark/machine.h"
#include "benchmark/report_html.h"
#include "benchmark/report_json.h"
#include "benchmark/rotating_cache.h"
#include "quire/error.h"

namespace quire::benchmark {
namespace {

using ::testing::HasSubstr;

RunOptions tiny_options() {
  RunOptions options;
  options.num_rounds = 2;
  options.cache_multiple = 0;
  options.probe_bytes = 1 << 20;
  options.probe_seconds = 1e-4;
  options.min_sample_seconds = 0;
  return options;
}

BenchCase tiny_case(const std::string& name, CustomShape shape,
                    Operation operation = Operation::kAttend) {
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 32;
  BenchCase c = custom_case(shape);
  c.c.name = name;
  c.operation = operation;
  return c;
}

TEST(Runner, MeasuresEveryOperationOnEveryCandidate) {
  std::vector<BenchCase> cases{
      tiny_case("attend", {.batch = "q1@40*3"}),
      tiny_case("caller", {.batch = "q3@40*3", .block_size = 1, .cache = CacheChoice::kCaller}),
      tiny_case("fp8", {.batch = "q1@40*3", .kv_dtype = DType::kF8E4M3}),
      tiny_case("int8", {.batch = "q1@40*3",
                         .kv_dtype = DType::kI8,
                         .scales = ScaleGranularity::kPerTokenHead,
                         .cache = CacheChoice::kCaller}),
      tiny_case("window", {.batch = "q1@90*2", .block_size = 16, .window = 20}),
      tiny_case("step", {.batch = "q1@40", .hot = true}, Operation::kStep),
      tiny_case("append", {.batch = "q8@8*2"}, Operation::kAppend),
      tiny_case("copy", {.batch = "q1@64*4", .block_size = 4}, Operation::kCopy)};
  cases[2].baseline = "attend";
  const std::vector<Candidate> candidates =
      make_candidates({.backends = {"cpu:scalar", "reference"}, .levels = {}, .num_threads = {2}});
  const Report report = run_benchmarks(cases, candidates, tiny_options());
  ASSERT_EQ(report.results.size(), 2 * cases.size());
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const Result& result = report.results[i];
    EXPECT_EQ(result.name, cases[i / 2].c.name);
    EXPECT_EQ(result.reason, "") << result.name;
    EXPECT_EQ(result.rounds, 2);
    EXPECT_GT(result.seconds, 0) << result.name;
    EXPECT_LE(result.seconds, result.median_seconds);
    EXPECT_GT(result.share_of_ceiling, 0) << result.name;
    EXPECT_TRUE(std::isfinite(result.share_of_ceiling));
    EXPECT_GT(result.bytes_per_second, 0);
    EXPECT_EQ(result.ratio_to_baseline > 0, result.name == "fp8");
  }
  EXPECT_EQ(report.results[0].candidate(), "cpu:scalar");
  EXPECT_DOUBLE_EQ(report.results[0].ratio_to_first, 1);
  EXPECT_EQ(report.results[12].ceiling, "memcpy");
  ASSERT_EQ(report.ceilings.size(), 1U);
  EXPECT_EQ(report.ceilings[0].threads, 2);
  EXPECT_GT(report.ceilings[0].read_bytes_per_second, 0);
  EXPECT_GT(report.ceilings[0].flops_per_second.at(0).second, 0);
}

TEST(Runner, AReasonStandsWhereACandidateRefuses) {
  BenchCase c = tiny_case("refused", {.batch = "q1@40"});
  c.c.spec.features.tree_mask = true;  // declared without causality: refused by every backend
  c.c.spec.mask.causal = false;
  const Report report = run_benchmarks(
      {c}, make_candidates({.backends = {"cpu:scalar"}, .levels = {}, .num_threads = {1}}),
      tiny_options());
  ASSERT_EQ(report.results.size(), 1U);
  EXPECT_NE(report.results[0].reason, "");
  EXPECT_FALSE(report.results[0].measured());
}

TEST(Report, JsonHasTheKeysThatScriptsReadAndReadsBack) {
  const Report report = run_benchmarks(
      {tiny_case("attend", {.batch = "q1@40*3"})},
      make_candidates({.backends = {"cpu:scalar"}, .levels = {}, .num_threads = {1, 2}}),
      tiny_options());
  const nlohmann::ordered_json document = to_json(report);
  for (const char* key : {"machine", "ceilings", "results"}) EXPECT_TRUE(document.contains(key));
  for (const char* key : {"read_bytes_per_second", "flops_per_second"}) {
    EXPECT_TRUE(document["ceilings"].contains(key)) << key;
  }
  EXPECT_TRUE(document["ceilings"]["flops_per_second"].is_object());
  EXPECT_EQ(document["ceilings"]["by_threads"].size(), 2U);
  ASSERT_EQ(document["results"].size(), 2U);
  for (const char* key : {"suite", "case", "backend", "isa", "threads", "block_size", "kv_dtype",
                          "seconds", "setup_seconds", "first_seconds", "bytes_per_second",
                          "flops_per_second", "share_of_ceiling"}) {
    EXPECT_TRUE(document["results"][0].contains(key)) << key;
  }
  EXPECT_GT(report.results[0].first_seconds, report.results[0].setup_seconds);
  const std::vector<Result> back = results_from_json(document);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[1].threads, report.results[1].threads);
  EXPECT_DOUBLE_EQ(back[1].share_of_ceiling, report.results[1].share_of_ceiling);
  EXPECT_THAT(html_page(report), HasSubstr("<svg"));
}

TEST(Report, JsonThatIsNoReportIsRefusedByKey) {
  EXPECT_THROW(results_from_json({{"other", 1}}), Error);
  try {
    static_cast<void>(results_from_json({{"results", {{{"suite", "decode"}}}}}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'case'"));
  }
  EXPECT_THROW(read_results("no/such/file.json"), Error);
}

TEST(Report, PageIsSafeAndShowsEveryCase) {
  Report report;
  Result result;
  result.name = "a<b";
  result.backend = "cpu";
  result.reason = "5 > 4 & more";
  report.results = {result};
  const std::string page = html_page(report);
  EXPECT_THAT(page, HasSubstr("a&lt;b"));
  EXPECT_THAT(page, HasSubstr("5 &gt; 4 &amp; more"));
  EXPECT_EQ(page.find("<svg"), std::string::npos);  // nothing to plot
}

TEST(FillRandom, GivesFiniteNormalNumbersOfEveryFormat) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    std::vector<std::byte> bytes(40000 + 3);
    fill_random(host_memory(), bytes.data(), 40000, dtype);
    double sum = 0;
    const std::int64_t count = 40000 / dtype_bytes(dtype);
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = load_float(dtype, bytes.data(), i);
      ASSERT_TRUE(std::isfinite(x)) << dtype_name(dtype);
      if (dtype == DType::kI8) continue;
      ASSERT_GE(std::abs(x), 0x1p-7F) << dtype_name(dtype);
      ASSERT_LT(std::abs(x), 2.0F) << dtype_name(dtype);
      sum += x;
    }
    EXPECT_LT(std::abs(sum) / static_cast<double>(count), 0.1) << dtype_name(dtype);
    for (std::size_t i = 40000; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0});
  }
}

TEST(Machine, CacheSizesAsSysfsWritesThem) {
  EXPECT_EQ(parse_cache_size("48K"), 48 << 10);
  EXPECT_EQ(parse_cache_size("266240K"), 266240LL << 10);
  EXPECT_EQ(parse_cache_size("2M"), 2 << 20);
  EXPECT_EQ(parse_cache_size("512"), 512);
  EXPECT_EQ(parse_cache_size(""), 0);
  EXPECT_EQ(parse_cache_size("48X"), 0);
  EXPECT_EQ(parse_cache_size("-1K"), 0);
}

TEST(Machine, IsFound) {
  const Machine machine = detect_machine();
  EXPECT_GE(machine.last_level_cache_bytes, 1 << 16);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_GT(machine.memory_bytes, 0);
}

TEST(Candidates, LevelsAndThreadsMultiply) {
  const std::vector<Candidate> candidates =
      make_candidates({.backends = {"cpu"}, .levels = {"all"}, .num_threads = {1, 2}});
  ASSERT_GE(candidates.size(), 2U);
  EXPECT_EQ(candidates.size() % 2, 0U);
  EXPECT_EQ(candidates.front().num_threads, 1);
  EXPECT_EQ(candidates.back().num_threads, 2);
}

TEST(Candidates, LevelsAreMeantBesideBackendsOfTheirNames) {
  using ::testing::ElementsAre;
  EXPECT_THAT(levels_beside({"cuda", "cpu"}, {"cuda", "torch"}), ElementsAre("cuda"));
  EXPECT_THAT(levels_beside({"cuda", "cpu"}, {"cpu:avx2", "torch"}), ElementsAre("cpu"));
  EXPECT_THAT(levels_beside({"cuda", "cpu"}, {"cpu", "cuda", "torch"}), ElementsAre("cuda", "cpu"));
  EXPECT_THAT(levels_beside({"cuda", "cpu"}, {"torch"}), ElementsAre(""));
  EXPECT_THAT(levels_beside({}, {"cuda", "onednn"}), ElementsAre(""));
}

TEST(Candidates, UnknownOnesAreRefused) {
  EXPECT_THROW(make_candidates({.backends = {"nothing"}, .levels = {}, .num_threads = {}}), Error);
  EXPECT_THROW(make_candidates({.backends = {"cpu:mmx"}, .levels = {}, .num_threads = {}}), Error);
  EXPECT_THROW(make_candidates({.backends = {"cpu"}, .levels = {"mmx"}, .num_threads = {}}), Error);
}

}  // namespace
}  // namespace quire::benchmark
