// SPDX-License-Identifier: Apache-2.0
// `quire bench` of a device, on the emulator: the probes and the calls run as kernels there, and
// recordings are done again. How long anything takes decides nothing here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "benchmark/report_html.h"
#include "benchmark/report_json.h"
#include "benchmark/runner.h"
#include "emulated_gpu/emulated_gpu.h"
#include "quire/registry.h"

namespace quire::testing {
namespace {

using benchmark::BenchCase;
using benchmark::Candidate;
using benchmark::CustomShape;
using benchmark::Operation;
using benchmark::Report;
using benchmark::Result;

benchmark::RunOptions tiny_options() {
  benchmark::RunOptions options;
  options.num_rounds = 2;
  options.min_sample_seconds = 0;
  return options;
}

Candidate emulated_candidate() {
  return {.backend = "emulated_gpu",
          .isa = "warps of 32",
          .num_threads = 0,
          .instance = make_emulated_gpu(),
          .meter = make_emulated_meter()};
}

BenchCase tiny_case(const std::string& name, CustomShape shape,
                    Operation operation = Operation::kAttend) {
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.block_size = 4;
  BenchCase c = benchmark::custom_case(shape);
  c.c.name = name;
  c.operation = operation;
  return c;
}

TEST(EmulatedBench, MeasuresEveryOperation) {
  std::vector<BenchCase> cases{tiny_case("attend", {.batch = "q1@20*2"}),
                               tiny_case("fp8", {.batch = "q1@20*2", .kv_dtype = DType::kF8E4M3}),
                               tiny_case("hot", {.batch = "q1@20", .hot = true}),
                               tiny_case("step", {.batch = "q2@9"}, Operation::kStep),
                               tiny_case("append", {.batch = "q4@4*2"}, Operation::kAppend),
                               tiny_case("copy", {.batch = "q1@16*4"}, Operation::kCopy),
                               tiny_case("swap_out", {.batch = "q1@16*4"}, Operation::kSwapOut),
                               tiny_case("swap_in", {.batch = "q1@16*4"}, Operation::kSwapIn)};
  cases[1].baseline = "attend";
  const Report report = run_benchmarks(cases, {emulated_candidate()}, tiny_options());
  ASSERT_EQ(report.results.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Result& result = report.results[i];
    ASSERT_EQ(result.reason, "") << result.name;
    EXPECT_EQ(result.name, cases[i].c.name);
    EXPECT_EQ(result.rounds, 2);
    EXPECT_GT(result.layer_seconds, 0) << result.name;
    EXPECT_LE(result.seconds, result.median_seconds);
    EXPECT_GT(result.host_seconds, 0) << result.name;
    EXPECT_GT(result.share_of_ceiling, 0) << result.name;
    EXPECT_TRUE(std::isfinite(result.share_of_ceiling)) << result.name;
    const bool copies = cases[i].operation == Operation::kCopy || i > 5;
    EXPECT_EQ(result.timing, copies ? "queued" : "graph") << result.name;
    // A layer holds its share of planning, and no other operation does.
    const bool attends = cases[i].operation == Operation::kAttend;
    EXPECT_EQ(result.layers_per_plan, attends ? 32 : 0) << result.name;
    EXPECT_EQ(result.setup_seconds > 0, attends || cases[i].operation == Operation::kStep);
    EXPECT_EQ(result.ratio_to_baseline > 0, result.name == "fp8");
  }
  const auto ceiling = [&](std::size_t i) { return report.results[i].ceiling; };
  EXPECT_TRUE(ceiling(2) == "cached read" || ceiling(2) == "bf16_mma") << ceiling(2);
  EXPECT_EQ(ceiling(4), "copy");
  EXPECT_EQ(ceiling(6), "to host");
  EXPECT_EQ(ceiling(7), "to device");
}

TEST(EmulatedBench, ReportSaysWhichDeviceAndItsCeilings) {
  const Report report = run_benchmarks({tiny_case("hot", {.batch = "q1@20", .hot = true})},
                                       {emulated_candidate()}, tiny_options());
  const nlohmann::ordered_json document = to_json(report);
  EXPECT_EQ(document["devices"][0]["name"], "emulated GPU");
  const auto& ceilings = document["ceilings"];
  EXPECT_EQ(ceilings["device"], "emulated GPU");
  for (const char* key : {"read_bytes_per_second", "copy_bytes_per_second",
                          "to_host_bytes_per_second", "to_device_bytes_per_second"}) {
    EXPECT_GT(ceilings[key], 0) << key;
  }
  EXPECT_GT(ceilings["flops_per_second"]["bf16_mma"], 0);
  EXPECT_EQ(ceilings["cached_read_bytes_per_second"].size(), 1U);
  for (const char* key : {"timing", "layer_seconds", "layers_per_plan", "host_seconds",
                          "setup_seconds", "median_seconds"}) {
    EXPECT_TRUE(document["results"][0].contains(key)) << key;
  }
  EXPECT_EQ(benchmark::results_from_json(document).size(), 1U);
  EXPECT_THAT(html_page(report), ::testing::HasSubstr("emulated GPU"));
}

TEST(EmulatedBench, CandidatesOfADeviceShareItsCeilingsAndCaches) {
  const std::vector<Candidate> candidates{emulated_candidate(), emulated_candidate()};
  const Report report =
      run_benchmarks({tiny_case("attend", {.batch = "q1@20*2"})}, candidates, tiny_options());
  ASSERT_EQ(report.results.size(), 2U);
  EXPECT_EQ(report.devices.size(), 1U);
  EXPECT_EQ(report.ceilings.size(), 1U);
  EXPECT_EQ(report.results[1].reason, "");
  EXPECT_EQ(report.results[1].timing, "graph");
  EXPECT_EQ(report.results[1].ceiling, report.results[0].ceiling);
  EXPECT_EQ(report.results[1].gather_seconds, 0);  // it reads blocks where they lie
  EXPECT_GT(report.results[1].ratio_to_first, 0);
}

TEST(EmulatedBench, AReasonStandsWhereTheDeviceRefuses) {
  BenchCase c = tiny_case("refused", {.batch = "q1@20"});
  c.c.spec.features.tree_mask = true;  // declared without causality
  c.c.spec.mask.causal = false;
  const Report report = run_benchmarks({c}, {emulated_candidate()}, tiny_options());
  ASSERT_EQ(report.results.size(), 1U);
  EXPECT_FALSE(report.results[0].measured());
}

TEST(EmulatedMeter, ProbesCountWhatTheyDo) {
  const std::unique_ptr<DeviceMeter> meter = make_emulated_meter();
  EXPECT_EQ(meter->enqueue_probe(DeviceLimit::kRead, 0, Stream{}), 80 * 1024);
  // A region is read as often as fits, in whole 16 bytes.
  EXPECT_EQ(meter->enqueue_probe(DeviceLimit::kRead, 40 * 1024 + 3, Stream{}), 40 * 1024 * 2);
  EXPECT_EQ(meter->enqueue_probe(DeviceLimit::kCopy, 0, Stream{}), 40 * 1024);
  EXPECT_EQ(meter->enqueue_probe(DeviceLimit::kToHost, 0, Stream{}), 4096);
  // 3 processors, 2 thread blocks of 8 teams, 2 steps of 8 products of [16, 16] by [16, 8].
  EXPECT_EQ(meter->enqueue_probe(DeviceLimit::kMultiply, 0, Stream{}),
            3.0 * 2 * 8 * 2 * 8 * (2 * 16 * 16 * 8));
}

}  // namespace
}  // namespace quire::testing
