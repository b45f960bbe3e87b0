// SPDX-License-Identifier: Apache-2.0
// The device path of the backend `torch` as a peer in `quire bench`: gather and attention are timed
// apart. On tensors of the host, by a meter with the host's clock; no time decides a test.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "backends/torch/device_backend.h"
#include "base/check.h"
#include "benchmark/report_json.h"
#include "benchmark/runner.h"

namespace quire::testing {
namespace {

using benchmark::BenchCase;
using benchmark::Candidate;
using benchmark::Report;
using benchmark::Result;

using Clock = std::chrono::steady_clock;

class CallAgain final : public DeviceRecording {
 public:
  explicit CallAgain(std::function<void()> enqueue) : enqueue_(std::move(enqueue)) {}
  void replay(Stream) override { enqueue_(); }

 private:
  std::function<void()> enqueue_;
};

// A device whose work is done when it is enqueued.
class HostMeter final : public DeviceMeter {
 public:
  explicit HostMeter(bool records) : records_(records) {}

  DeviceFacts facts() const override {
    DeviceFacts facts;
    facts.name = "host";
    facts.cache_bytes = 1 << 10;
    return facts;
  }
  std::int64_t free_memory_bytes() override { return 1 << 30; }
  std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream) override {
    if (!records_) fail(ErrorCode::kDevice, "nothing is recorded here");
    return std::make_unique<CallAgain>(std::move(enqueue));
  }
  void set_mark(int mark, Stream) override {
    marks_.at(static_cast<std::size_t>(mark)) = Clock::now();
  }
  double seconds_between(int first, int last) override {
    const auto time =
        marks_.at(static_cast<std::size_t>(last)) - marks_.at(static_cast<std::size_t>(first));
    return std::max(std::chrono::duration<double>(time).count(), 1e-9);
  }
  double enqueue_probe(DeviceLimit, std::int64_t, Stream) override { return 1e6; }

 private:
  bool records_;
  std::array<Clock::time_point, kNumMarks> marks_{};
};

Report run_bench(bool records, const std::vector<BenchCase>& cases) {
  const Candidate candidate{.backend = "torch",
                            .isa = "cuda",
                            .num_threads = 0,
                            .instance = torch_sdpa::make_device_backend_on_host(),
                            .meter = std::make_shared<HostMeter>(records)};
  benchmark::RunOptions options;
  options.num_rounds = 2;
  options.min_sample_seconds = 0;
  return run_benchmarks(cases, {candidate}, options);
}

BenchCase tiny_case(const char* batch) {
  BenchCase c = benchmark::custom_case(
      {.batch = batch, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .block_size = 4});
  c.c.name = batch;
  return c;
}

TEST(TorchDeviceBench, GatherIsTimedApart) {
  const Report report = run_bench(true, {tiny_case("q1@20*2"), tiny_case("q9@20,q1@7*3")});
  ASSERT_EQ(report.results.size(), 2U);
  for (const Result& result : report.results) {
    ASSERT_EQ(result.reason, "") << result.name;
    EXPECT_EQ(result.timing, "graph");
    EXPECT_GT(result.seconds, 0);
    EXPECT_GT(result.gather_seconds, 0);
    EXPECT_GT(result.setup_seconds, 0);
    EXPECT_EQ(result.layers_per_plan, 0);  // no share of planning is in the times
  }
  const nlohmann::ordered_json document = to_json(report);
  EXPECT_GT(document["results"][0]["gather_seconds"], 0);
}

TEST(TorchDeviceBench, WhatCannotBeRecordedIsQueued) {
  const Report report = run_bench(false, {tiny_case("q1@20*2")});
  const Result& result = report.results.at(0);
  ASSERT_EQ(result.reason, "");
  EXPECT_EQ(result.timing, "queued");
  EXPECT_NE(result.notes.find("nothing is recorded here"), std::string::npos) << result.notes;
  EXPECT_GT(result.gather_seconds, 0);
}

TEST(TorchDeviceBench, AStepIsRefused) {
  BenchCase step = tiny_case("q2@9");
  step.operation = benchmark::Operation::kStep;
  EXPECT_NE(run_bench(true, {step}).results.at(0).reason.find("prepare waits"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
