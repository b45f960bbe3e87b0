// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "quire/error.h"
#include "replay/real_trace.h"
#include "replay/trace_reader.h"
#include "replay/trace_statistics.h"

namespace quire::replay {
namespace {

TEST(TraceGenerator, IsAFunctionOfItsOptions) {
  GeneratorOptions options{.num_requests = 500, .duration_s = 200};
  const Trace first = generate_trace(options);
  EXPECT_EQ(generate_trace(options), first);
  options.seed = 2;
  EXPECT_NE(generate_trace(options), first);
}

TEST(TraceGenerator, MakesOrderedRequestsWhoseIdsAreNumberedAsTheyCome) {
  const GeneratorOptions options{.num_requests = 2000, .duration_s = 600};
  const Trace trace = generate_trace(options);
  ASSERT_EQ(trace.size(), 2000U);
  std::int64_t next_id = 0;
  std::int64_t last_ms = 0;
  for (const TraceRequest& request : trace) {
    EXPECT_GE(request.timestamp_ms, last_ms);
    EXPECT_EQ(request.timestamp_ms % 3000, 0);
    last_ms = request.timestamp_ms;
    ASSERT_EQ(std::ssize(request.hash_ids), (request.input_length + 511) / 512);
    EXPECT_GT(request.input_length, options.system_tokens);
    EXPECT_LE(request.input_length, options.max_input);
    EXPECT_EQ(request.hash_ids[0], 0);  // the system prompt
    for (const std::int64_t id : request.hash_ids) {
      EXPECT_LE(id, next_id);
      next_id = std::max(next_id, id + 1);
    }
  }
  EXPECT_LT(last_ms, 600'000);
}

TEST(TraceGenerator, TakesItsStatistics) {
  GeneratorOptions options{.num_requests = 4000, .duration_s = 4000};
  options.mean_turns = 1;
  options.system_tokens = 1024;
  options.num_system_prompts = 3;
  options.first_tokens = QuantileCurve::parse("first", "100");
  options.output_tokens = QuantileCurve::parse("output", "0:10,50:20,100:40");
  options.tick_s = 0;
  const Trace trace = generate_trace(options);
  std::set<std::int64_t> first_ids;
  for (const TraceRequest& request : trace) {
    EXPECT_EQ(request.input_length, 1124);
    first_ids.insert(request.hash_ids[0]);
  }
  EXPECT_EQ(first_ids.size(), 3U);
  const TraceStatistics stats = measure(trace);
  EXPECT_NEAR(stats.output_length.quantiles[2], 20, 1);
  EXPECT_EQ(stats.num_ideal_hits, 2 * (4000 - 3));
  options.arrivals = Arrivals::kBurst;
  EXPECT_EQ(generate_trace(options).back().timestamp_ms, 0);
  options.arrivals = Arrivals::kEven;
  const Trace even = generate_trace(options);
  for (std::size_t i = 1; i < even.size(); ++i) {
    EXPECT_LE(even[i].timestamp_ms - even[i - 1].timestamp_ms, 3000);
  }
}

TEST(TraceGenerator, NamesABadOption) {
  const auto message = [](const std::function<void(GeneratorOptions&)>& change) -> std::string {
    GeneratorOptions options;
    change(options);
    try {
      generate_trace(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([](auto& o) { o.num_requests = 0; }), HasSubstr("the number of requests"));
  EXPECT_THAT(message([](auto& o) { o.duration_s = 0; }), HasSubstr("the duration"));
  EXPECT_THAT(message([](auto& o) { o.mean_turns = 0.5; }), HasSubstr("the mean number of turns"));
  EXPECT_THAT(message([](auto& o) { o.rewind_share = 1.1; }), HasSubstr("the share of rewinds"));
  EXPECT_THAT(message([](auto& o) { o.system_tokens = o.max_input; }),
              HasSubstr("the tokens of the system prompt"));
  EXPECT_THAT(message([](auto& o) { o.rewind_kept = QuantileCurve::parse("x", "2"); }),
              HasSubstr("the largest part that a rewind keeps"));
}

TEST(QuantileCurve, IsWhatItsTextSays) {
  const QuantileCurve curve = QuantileCurve::parse("x", "0:1,50:100,100:400");
  EXPECT_EQ(curve.at(0), 1);
  EXPECT_DOUBLE_EQ(curve.at(0.25), 10);  // the logarithm is linear
  EXPECT_EQ(curve.at(0.5), 100);
  EXPECT_DOUBLE_EQ(curve.at(0.75), 200);
  EXPECT_EQ(curve.at(1), 400);
  EXPECT_EQ(curve.to_string(), "0:1,50:100,100:400");
  EXPECT_EQ(QuantileCurve::parse("x", "7").at(0.3), 7);
  for (const char* text :
       {"", "a", "0:1", "1:1,100:2", "0:1,99:2", "0:0,100:2", "0:2,100:1", "0:1,50:2,50:3,100:4",
        "0:1,100:nan", "0:1,,100:2", "0:1,100:2,x", "0:1,100:inf", "-5"}) {
    EXPECT_THROW(static_cast<void>(QuantileCurve::parse("x", text)), Error) << text;
  }
}

// The statistics that the notes and the README state, and how near the generator comes to them.
TEST(RealTrace, HasTheStatisticsThatTheGeneratorIsFittedTo) {
  const std::string path = real_trace_path();
  if (path.empty()) GTEST_SKIP() << kNoRealTrace;
  const TraceStatistics real = measure(read_trace(path));
  EXPECT_EQ(real.num_requests, 12031);
  EXPECT_EQ(real.num_block_refs, 288'500);
  EXPECT_EQ(real.num_distinct_blocks, 182'790);
  EXPECT_EQ(real.num_full_blocks, 276'491);
  EXPECT_EQ(real.num_ideal_hits, 105'592);
  const TraceStatistics made = measure(generate_trace({}));
  const auto expect_near = [](double want, double got, double share) {
    EXPECT_NEAR(got / want, 1, share) << got << " for " << want;
  };
  expect_near(real.input_length.mean, made.input_length.mean, 0.05);
  expect_near(real.output_length.mean, made.output_length.mean, 0.05);
  for (const std::size_t i : {1, 2, 3, 5}) {
    expect_near(real.input_length.quantiles[i], made.input_length.quantiles[i], 0.1);
    expect_near(real.output_length.quantiles[i], made.output_length.quantiles[i], 0.1);
    expect_near(real.turn_gap_s.quantiles[i], made.turn_gap_s.quantiles[i], 0.2);
  }
  expect_near(real.mean_turns, made.mean_turns, 0.1);
  expect_near(static_cast<double>(real.num_ideal_hits), static_cast<double>(made.num_ideal_hits),
              0.1);
}

}  // namespace
}  // namespace quire::replay
