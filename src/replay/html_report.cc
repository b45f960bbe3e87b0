// SPDX-License-Identifier: Apache-2.0
#include "replay/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

#include "replay/svg_chart.h"

namespace quire::replay {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --paper: #fbfbf9; --card: #ffffff; --ink: #1d2129;
  --soft: #5b6472; --rule: #e3e5e8; --c0: #2563eb; --c1: #d9730d; --c2: #0f8a72; --c3: #8b3fc7;
  --good: #13703f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161a; --card: #1c1f25; --ink: #e7e9ee;
  --soft: #a3abb8; --rule: #343941; --c0: #7aa7ff; --c1: #f5a04c; --c2: #4fd1b3; --c3: #c792f5;
  --good: #6fd39b; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 10px; }
.sub { color: var(--soft); margin: 0 0 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.tile, figure, .table { background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; }
.tile { padding: 12px 14px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr));
  gap: 16px; }
figure { margin: 0; padding: 14px 14px 10px; }
figcaption { font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft);
  margin: 2px 0 6px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }
i.s0 { background: var(--c0); } i.s1 { background: var(--c1); }
i.s2 { background: var(--c2); } i.s3 { background: var(--c3); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
svg .label { fill: var(--ink); font-size: 13px; }
.grid { stroke: var(--rule); } .axis, .tick { stroke: var(--soft); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.area { fill-opacity: 0.75; stroke: none; }
.line.s0 { stroke: var(--c0); } .line.s1 { stroke: var(--c1); stroke-dasharray: 7 4; }
.line.s2 { stroke: var(--c2); stroke-width: 1; stroke-opacity: 0.6; } .line.s3 { stroke: var(--c3); }
.area.s0, .bar.s0 { fill: var(--c0); } .area.s1, .bar.s1 { fill: var(--c1); }
.area.s2, .bar.s2 { fill: var(--c2); } .area.s3, .bar.s3 { fill: var(--c3); }
.hover { fill: var(--ink); fill-opacity: 0; } .hover:hover { fill-opacity: 0.12; }
.note { color: var(--soft); font-size: 13px; margin: 6px 0 0; }
.none { color: var(--soft); }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 14px; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: none; }
thead th { color: var(--soft); font-weight: 600; }
.settings td { text-align: left; white-space: normal; }
)css";

constexpr std::size_t kFirstShown = 2;  // of kShownPercents: the median

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

// Values over the buckets in which something was seen.
class SeriesCharts {
 public:
  explicit SeriesCharts(const TimeSeries& series) {
    for (std::size_t i = 0; i < series.buckets().size(); ++i) {
      if (series.buckets()[i].num_steps == 0) continue;
      buckets_.push_back(&series.buckets()[i]);
      times_.push_back((static_cast<double>(i) + 0.5) * series.width_s());
    }
    constexpr double kMinute = 60;
    if (!times_.empty() && times_.back() > 20 * kMinute) {
      for (double& time : times_) time /= kMinute;
      x_label_ = "minutes of the trace";
    }
  }

  std::string draw() const {
    return draw_chart(occupancy(), ChartKind::kStacked) +
           draw_chart(hit_rate(), ChartKind::kLines) + draw_chart(batches(), ChartKind::kStacked) +
           draw_chart(queue(), ChartKind::kLines) + draw_chart(evictions(), ChartKind::kLines) +
           draw_chart(preemptions(), ChartKind::kLines);
  }

 private:
  using Value = std::function<double(const Bucket&)>;

  ChartSeries series(const char* name, const Value& value) const {
    ChartSeries result{.name = name, .values = {}};
    for (const Bucket* bucket : buckets_) result.values.push_back(value(*bucket));
    return result;
  }
  // A level: NaN where nobody looked.
  ChartSeries level(const char* name, double Bucket::*member, double factor = 1) const {
    return series(name, [=](const Bucket& bucket) {
      return bucket.seconds > 0 ? factor * bucket.*member / bucket.seconds : NAN;
    });
  }
  ChartSeries per_step(const char* name, std::int64_t Bucket::*member) const {
    return series(name, [=](const Bucket& bucket) {
      return static_cast<double>(bucket.*member) / static_cast<double>(bucket.num_steps);
    });
  }
  ChartSeries hits_so_far(const char* name, std::int64_t Bucket::*member) const {
    std::int64_t hits = 0;
    std::int64_t blocks = 0;
    return series(name, [&, member](const Bucket& bucket) {
      hits += bucket.*member;
      blocks += bucket.full_blocks;
      return blocks > 0 ? percent(hits, blocks) : NAN;
    });
  }
  Chart chart(const char* id, const char* title, const char* y_label,
              const char* description) const {
    return {.id = id,
            .title = title,
            .description = description,
            .x_label = x_label_,
            .y_label = y_label,
            .x = times_,
            .series = {}};
  }

  Chart occupancy() const {
    Chart result = chart("occupancy", "Occupancy of the cache", "% of the blocks",
                         "Blocks that requests hold, and blocks that only wait to be found again. "
                         "What is left is free.");
    result.series = {level("held by requests", &Bucket::in_use, 100),
                     level("kept for reuse", &Bucket::evictable, 100)};
    result.y_max = 100;
    return result;
  }
  Chart hit_rate() const {
    Chart result = chart("hits", "Hit rate of the prefix cache", "% of full prompt blocks",
                         "Blocks of prompts that were found instead of computed. Ideal: a cache "
                         "without end that knows every earlier prompt.");
    result.series = {
        hits_so_far("achieved, so far", &Bucket::hit_blocks),
        hits_so_far("ideal, so far", &Bucket::ideal_hit_blocks),
        series("achieved, in each interval", [](const Bucket& bucket) {
          return bucket.full_blocks > 0 ? percent(bucket.hit_blocks, bucket.full_blocks) : NAN;
        })};
    return result;
  }
  Chart batches() const {
    Chart result = chart("batches", "Composition of the batches", "tokens per step",
                         "Tokens of prompts and tokens of answers that one step computes.");
    result.series = {per_step("decode", &Bucket::decode_tokens),
                     per_step("prefill", &Bucket::prefill_tokens)};
    return result;
  }
  Chart queue() const {
    Chart result = chart("queue", "Requests", "requests",
                         "Requests that run at the same time, and those that wait for a place, "
                         "preempted ones included.");
    result.series = {level("running", &Bucket::running), level("waiting", &Bucket::waiting)};
    return result;
  }
  ChartSeries count(const char* name, std::int64_t Bucket::*member) const {
    return series(name, [=](const Bucket& bucket) { return static_cast<double>(bucket.*member); });
  }
  Chart evictions() const {
    Chart result = chart("evictions", "Evictions", "blocks in each interval",
                         "Contents that were given up for new ones.");
    result.series = {count("evicted blocks", &Bucket::evictions)};
    return result;
  }
  Chart preemptions() const {
    Chart result = chart("preemptions", "Preemptions", "in each interval",
                         "Requests that had to give blocks to others.");
    result.series = {count("preemptions", &Bucket::preemptions)};
    return result;
  }

  std::vector<const Bucket*> buckets_;
  std::vector<double> times_;
  std::string x_label_ = "seconds of the trace";
};

struct NamedHistogram {
  const char* name;
  const LogHistogram* histogram;
};

// Only the bins from the first to the last that holds something.
Chart histogram_chart(const char* id, const char* title, const char* x_label, const char* y_label,
                      const std::vector<NamedHistogram>& histograms) {
  int first = LogHistogram::kNumBins;
  int last = -1;
  for (const auto& [name, histogram] : histograms) {
    for (int bin = 0; bin < LogHistogram::kNumBins; ++bin) {
      if (histogram->counts()[static_cast<std::size_t>(bin)] == 0) continue;
      first = std::min(first, bin);
      last = std::max(last, bin);
    }
  }
  Chart chart{.id = id,
              .title = title,
              .description = {},
              .x_label = x_label,
              .y_label = y_label,
              .x = {},
              .series = {}};
  for (const auto& [name, histogram] : histograms) {
    ChartSeries series{.name = name, .values = {}};
    for (int bin = first; bin <= last; ++bin) {
      series.values.push_back(
          static_cast<double>(histogram->counts()[static_cast<std::size_t>(bin)]));
    }
    chart.series.push_back(std::move(series));
  }
  for (int bin = first; bin <= last + 1; ++bin) chart.x.push_back(LogHistogram::lower_bound(bin));
  return chart;
}

std::string histograms(const ReplayReport& report, bool is_computed) {
  const char* const clock = is_computed ? "measured" : "on the clock of the trace";
  Chart first = histogram_chart("latency", "Time to the first token", "seconds", "requests",
                                {{"to the first token", &report.ttft_histogram},
                                 {"of it in the queue", &report.queue_histogram}});
  first.description =
      fmt::format("From arrival; {}. Waits below 0.1 ms stand in the first bar.", clock);
  Chart token = histogram_chart("token", "Time of each further token", "seconds", "requests",
                                {{"mean of a request", &report.token_histogram}});
  token.description = fmt::format("Between two tokens of one request; {}.", clock);
  Chart total = histogram_chart("total", "Time of a whole request", "seconds", "requests",
                                {{"from arrival to the last token", &report.total_histogram}});
  total.description = fmt::format("The queue included; {}.", clock);
  Chart life = histogram_chart(
      "lifetime", "Lifetime of blocks in the prefix cache", "seconds of the trace", "blocks",
      {{"evicted after", &report.evicted_histogram}, {"age at the end", &report.alive_histogram}});
  life.description = "From the step that computed a block to the one that gave it up for another.";
  return draw_chart(first, ChartKind::kBars) + draw_chart(token, ChartKind::kBars) +
         draw_chart(total, ChartKind::kBars) + draw_chart(life, ChartKind::kBars);
}

std::string tile(const std::string& value, const std::string& name, const char* style = "") {
  return fmt::format("<div class=\"tile\"><b class=\"{}\">{}</b><span>{}</span></div>\n", style,
                     escape_html(value), escape_html(name));
}

std::string tiles(const ReplayReport& report) {
  std::string out = "<div class=\"tiles\">\n";
  out += tile(fmt::format("{}", report.num_requests), "requests");
  out += tile(short_number(static_cast<double>(report.prompt_tokens)), "prompt tokens");
  out += tile(fmt::format("{:.1f} %", percent(report.hit_blocks, report.full_blocks)),
              fmt::format("hit rate; ideal {:.1f} %",
                          percent(report.ideal_hit_blocks, report.full_blocks)));
  out += tile(short_number(static_cast<double>(report.num_steps)), "steps");
  out += tile(fmt::format("{} s", short_number(report.ttft_s.quantiles[2])), "first token, median");
  out += tile(fmt::format("{} ms", short_number(1000 * report.token_s.quantiles[2])),
              "each further token, median");
  out += tile(short_number(static_cast<double>(report.scheduler.num_preemptions())), "preemptions");
  out += tile(short_number(static_cast<double>(report.blocks.num_evictions)), "evicted blocks");
  const BlockStats& blocks = report.blocks;
  out += tile(short_number(static_cast<double>(blocks.num_copies + blocks.num_swapped_out +
                                               blocks.num_swapped_in)),
              "copied blocks");
  if (report.num_refused > 0) {
    out += tile(fmt::format("{}", report.num_refused), "refused requests", "bad");
  }
  if (report.verification.num_rows > 0) {
    out += tile(short_number(static_cast<double>(report.verification.num_rows)),
                fmt::format("rows verified; largest error {:.2g}", report.verification.max_error));
  }
  out += tile(fmt::format("{}", report.violations), "violations",
              report.violations == 0 ? "good" : "bad");
  return out + "</div>\n";
}

std::string table_row(const char* name, const Summary& summary, double factor = 1) {
  std::string row =
      fmt::format("<tr><td>{}</td><td>{}</td>", name, short_number(summary.mean * factor));
  for (std::size_t i = kFirstShown; i < kShownPercents.size(); ++i) {
    row += fmt::format("<td>{}</td>", short_number(summary.quantiles[i] * factor));
  }
  return row + "</tr>\n";
}

std::string figures(const ReplayReport& report) {
  std::string out =
      "<div class=\"table\"><table><thead><tr><th></th><th>mean</th><th>p50</th><th>p90</th>"
      "<th>p95</th><th>p99</th><th>max</th></tr></thead><tbody>\n";
  out += table_row("first token, s", report.ttft_s);
  out += table_row("first token, steps", report.ttft_steps);
  out += table_row("each further token, ms", report.token_s, 1000);
  out += table_row("each further token, steps", report.token_steps);
  out += table_row("in the queue, s", report.queue_s);
  out += table_row("in the queue, steps", report.queue_steps);
  out += table_row("whole request, s", report.total_s);
  out += table_row("requests running", report.running);
  out += table_row("requests waiting", report.waiting);
  out += table_row("blocks in use, %", report.in_use, 100);
  return out + "</tbody></table></div>\n";
}

std::string settings(const HtmlContext& context) {
  std::string out = "<div class=\"table settings\"><table><tbody>\n";
  for (const auto& [name, value] : context.settings) {
    out += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(name), escape_html(value));
  }
  return out + "</tbody></table></div>\n";
}

std::string violations(const ReplayReport& report) {
  if (report.messages.empty()) return "";
  std::string out = "<h2 class=\"bad\">Violations</h2>\n<ul>\n";
  for (const std::string& message : report.messages) {
    out += fmt::format("<li>{}</li>\n", escape_html(message));
  }
  return out + "</ul>\n";
}

std::string refusals(const ReplayReport& report) {
  if (report.num_refused == 0) return "";
  std::string out = "<h2 id=\"refused\" class=\"bad\">Refused requests</h2>\n<ul>\n";
  for (const RefusedRequest& request : report.refused) {
    out += fmt::format("<li>{}</li>\n", escape_html(to_string(request)));
  }
  const auto num_left = report.num_refused - static_cast<std::int64_t>(report.refused.size());
  if (num_left > 0) out += fmt::format("<li>and {} more</li>\n", num_left);
  return out + "</ul>\n";
}

}  // namespace

std::string html_report(const ReplayReport& report, const HtmlContext& context) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n"
      "<main>\n<h1>{}</h1>\n",
      escape_html(context.title), kStyle, escape_html(context.title));
  out +=
      fmt::format("<p class=\"sub\">{}: {} s for {} s of trace. Times are {}.</p>\n",
                  context.is_computed ? "Attention computed" : "Scheduler and block manager alone",
                  short_number(report.wall_seconds), short_number(report.trace_seconds),
                  context.is_computed ? "measured" : "those of the clock of the trace");
  out += tiles(report);
  out += violations(report);
  out += "<h2>Over time</h2>\n<div class=\"charts\">\n" + SeriesCharts(report.series).draw() +
         "</div>\n";
  out += "<h2>Distributions</h2>\n<div class=\"charts\">\n" +
         histograms(report, context.is_computed) + "</div>\n";
  out += "<h2>Figures</h2>\n" + figures(report);
  out += refusals(report);
  out += "<h2>Settings</h2>\n" + settings(context);
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace quire::replay
