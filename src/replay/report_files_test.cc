// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "replay/cache_plan.h"
#include "replay/chrome_trace.h"
#include "replay/html_report.h"
#include "replay/replay.h"
#include "replay/svg_chart.h"
#include "replay/trace_generator.h"

namespace quire::replay {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSampleInterval = 3;

ReplayReport small_replay(ReplayObserver* observer, BlockLifetimes* lifetimes,
                          std::int64_t num_requests = 80) {
  GeneratorOptions generator{.num_requests = num_requests, .duration_s = 30};
  generator.max_input = 10'000;
  const Workload workload(generate_trace(generator), {});
  BlockManagerOptions blocks = manager_options({.block_size = 64, .num_blocks = 300});
  blocks.events = lifetimes;
  MemoryRunner runner({}, blocks);
  return replay(workload, runner,
                {.sample_interval = kSampleInterval, .lifetimes = lifetimes, .observer = observer});
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t num = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++num;
  }
  return num;
}

TEST(HtmlReport, IsOnePageWithAllItsCharts) {
  BlockLifetimes lifetimes;
  const ReplayReport report = small_replay(nullptr, &lifetimes);
  const std::string page =
      html_report(report, {.title = "a <trace> & \"b\"", .settings = {{"Cache", "<300>"}}});
  EXPECT_THAT(page, HasSubstr("<title>a &lt;trace&gt; &amp; &quot;b&quot;</title>"));
  EXPECT_THAT(page, HasSubstr("&lt;300&gt;"));
  for (const char* id : {"occupancy", "hits", "batches", "queue", "evictions", "preemptions",
                         "latency", "token", "total", "lifetime"}) {
    EXPECT_THAT(page, HasSubstr("<figure id=\"" + std::string(id) + "\">"));
  }
  // Nothing from elsewhere, and nothing that is not a number.
  for (const char* part : {"http", "<script", "src=", "@import", "url(", "nan", "inf\""}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  for (const char* tag : {"svg", "figure", "div", "table", "rect", "text", "desc", "html"}) {
    const std::string open = "<" + std::string(tag);
    const std::string close = "</" + std::string(tag) + ">";
    EXPECT_EQ(count(page, open + " ") + count(page, open + ">"), count(page, close)) << tag;
  }
  EXPECT_EQ(count(page, "<svg "), count(page, "role=\"img\""));
}

TEST(HtmlReport, ShowsViolationsAndEmptyCharts) {
  ReplayReport report;
  report.violations = 1;
  report.messages = {"block 7 <is> lost"};
  const std::string page = html_report(report, {.title = "nothing"});
  EXPECT_THAT(page, HasSubstr("<b class=\"bad\">1</b>"));
  EXPECT_THAT(page, HasSubstr("<li>block 7 &lt;is&gt; lost</li>"));
  EXPECT_THAT(page, HasSubstr("Nothing to show in this replay."));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(HtmlReport, NamesRefusedRequests) {
  ReplayReport report;
  report.num_refused = 3;
  report.refused = {{.index = 6, .input_length = 9, .output_length = 1, .reason = "too <large>"}};
  const std::string page = html_report(report, {.title = "refused"});
  EXPECT_THAT(page, HasSubstr("<b class=\"bad\">3</b><span>refused requests</span>"));
  EXPECT_THAT(page, HasSubstr("<li>request 7 of the trace, 9 + 1 tokens: too &lt;large&gt;</li>\n"
                              "<li>and 2 more</li>"));
  EXPECT_THAT(html_report({}, {.title = "none"}), Not(HasSubstr("refused")));
}

TEST(SvgChart, DrawsValuesWhereTheyBelong) {
  Chart chart{.id = "c",
              .title = "t",
              .description = "d",
              .x_label = "s",
              .y_label = "%",
              .x = {0, 10},
              .series = {{"a", {0, 100}}},
              .y_max = 100};
  const std::string lines = draw_chart(chart, ChartKind::kLines);
  EXPECT_THAT(lines, HasSubstr("<path class=\"line s0\" d=\"M62.0 212.0L584.0 12.0\"/>"));
  EXPECT_THAT(lines, HasSubstr("<title id=\"c-t\">t</title><desc id=\"c-d\">d</desc>"));
  chart.series.push_back({"b", {50, 0}});
  EXPECT_THAT(draw_chart(chart, ChartKind::kStacked),
              HasSubstr("d=\"M62.0 112.0L584.0 12.0L584.0 12.0L62.0 212.0Z\""));
  chart.x = {1, 10, 100};
  EXPECT_EQ(count(draw_chart(chart, ChartKind::kBars), "class=\"bar"), 2U);  // the others are 0
}

TEST(ShortNumber, HasThreeDigits) {
  const std::map<double, std::string> wants{
      {0, "0"},         {0.00012345, "0.000123"}, {1.234, "1.23"}, {12.34, "12.3"}, {999, "999"},
      {1234.4, "1234"}, {12345, "12.3k"},         {1.5e6, "1.5M"}, {2e9, "2G"}};
  for (const auto& [value, text] : wants) EXPECT_EQ(short_number(value), text);
}

TEST(ChromeTrace, IsAValidTraceOfStepsCountersAndRequests) {
  std::ostringstream text;
  ChromeTraceWriter writer(text);
  const ReplayReport report = small_replay(&writer, nullptr, 25);
  writer.finish();
  EXPECT_FALSE(writer.is_truncated());
  const Json document = Json::parse(text.str());
  std::map<std::string, std::int64_t> phases;
  std::map<std::pair<std::int64_t, std::string>, double> open;
  double last_end = 0;
  for (const Json& event : document.at("traceEvents")) {
    const std::string phase = event.at("ph");
    ++phases[phase];
    EXPECT_EQ(event.at("pid"), 1);
    EXPECT_TRUE(event.at("name").is_string());
    if (phase == "M") continue;
    const double ts = event.at("ts");
    EXPECT_GE(ts, 0);
    if (phase == "X") {
      EXPECT_GE(ts, last_end - 0.01) << "steps do not overlap";
      last_end = ts + event.at("dur").get<double>();
      EXPECT_TRUE(event.at("args").contains("prefill_tokens"));
    } else if (phase == "C") {
      for (const Json& value : event.at("args")) EXPECT_TRUE(value.is_number());
    } else {
      EXPECT_EQ(event.at("cat"), "request");
      const std::pair<std::int64_t, std::string> key{event.at("id"), event.at("name")};
      if (phase == "b") {
        EXPECT_TRUE(open.emplace(key, ts).second);
      } else {
        ASSERT_TRUE(open.contains(key));
        EXPECT_GE(ts, open.at(key));
        open.erase(key);
      }
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(phases["X"], report.num_steps);
  EXPECT_EQ(phases["C"], 2 * (report.num_steps / kSampleInterval));  // only what was looked at
  EXPECT_EQ(phases["b"], phases["e"]);
  EXPECT_GE(phases["b"], 2 * report.num_requests);
}

TEST(ChromeTrace, EndsAtItsLimitAndIsStillValid) {
  std::ostringstream text;
  ChromeTraceWriter writer(text, 5);
  small_replay(&writer, nullptr, 10);
  writer.finish();
  EXPECT_TRUE(writer.is_truncated());
  std::int64_t num_steps = 0;
  const Json document = Json::parse(text.str());
  for (const Json& event : document.at("traceEvents")) {
    num_steps += event.at("ph") == "X";
  }
  EXPECT_EQ(num_steps, 5);
}

}  // namespace
}  // namespace quire::replay
