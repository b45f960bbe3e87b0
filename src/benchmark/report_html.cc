// SPDX-License-Identifier: Apache-2.0
#include "benchmark/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "benchmark/roofline_plot.h"
#include "quire/version.h"

namespace quire::benchmark {
namespace {

constexpr double kGiga = 1e9;

constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>quire bench</title>
<style>
:root { color-scheme: light dark; --page: #fdfdfc; --ink: #1c1e21; --soft: #62676e; --rule: #dcdee2;
  --track: #eceef0; --c0: #1f6fb4; --c1: #c75b12; --c2: #2a8a4a; --c3: #8250b8; --c4: #b8860b;
  --c5: #c0395b; --c6: #16878f; --c7: #6b6f76; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --ink: #e6e8ea; --soft: #9aa1a9; --rule: #33383e; --track: #23272c;
    --c0: #5aa9ea; --c1: #f0924e; --c2: #5cc27e; --c3: #b48ae6; --c4: #e0b440; --c5: #ee7793;
    --c6: #4fc1c9; --c7: #a3a9b0; } }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 960px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 36px 0 8px; }
p { margin: 4px 0 12px; color: var(--soft); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.roof { stroke: var(--ink); stroke-width: 1.6; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 6px; margin-right: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 2px 18px 2px 0; font-weight: normal; }
th { color: var(--soft); } td.n { text-align: right; }
.case { border-top: 1px solid var(--rule); padding: 8px 0 10px; }
.case b { font-weight: 600; }
.case .note { color: var(--soft); font-size: 13px; }
.bar { display: grid; grid-template-columns: 170px 1fr 62px 372px; gap: 0 10px; align-items: center;
  font-variant-numeric: tabular-nums; font-size: 13px; white-space: nowrap; }
.date { white-space: nowrap; }
.bar .track { background: var(--track); height: 12px; border-radius: 3px; overflow: hidden; }
.bar .fill { height: 12px; border-radius: 3px; }
.bar .share { text-align: right; }
.bar .rate { color: var(--soft); }
@media (max-width: 800px) { .bar { grid-template-columns: 170px 1fr 56px; }
  .bar .rate { grid-column: 1 / -1; margin-bottom: 4px; } }
)";

// Colours of points and bars, by candidate.
std::string colour_rules() {
  std::string rules;
  for (int i = 0; i < kNumColours; ++i) {
    rules += fmt::format(".c{0} {{ fill: var(--c{0}); background: var(--c{0}); }}\n", i);
  }
  return rules + "</style>\n</head>\n<body>\n";
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::vector<std::string> candidates_of(const Report& report) {
  std::vector<std::string> names;
  for (const Result& result : report.results) {
    if (std::find(names.begin(), names.end(), result.candidate()) == names.end()) {
      names.push_back(result.candidate());
    }
  }
  return names;
}

int colour_of(const std::vector<std::string>& candidates, const Result& result) {
  const auto found = std::find(candidates.begin(), candidates.end(), result.candidate());
  return static_cast<int>((found - candidates.begin()) % kNumColours);
}

std::string header(const Report& report) {
  const Machine& machine = report.machine;
  std::string text = fmt::format(
      "<h1>quire bench</h1>\n<p>quire {}, {}, {} CPUs, last-level cache {} MiB, {}, {}, "
      "<span class=\"date\">{}</span></p>\n",
      version(), escape_html(machine.cpu.model), machine.cpu.num_cpus,
      machine.last_level_cache_bytes >> 20, escape_html(machine.kernel),
      escape_html(machine.compiler), machine.date);
  for (const std::string& note : report.notes) text += "<p>" + escape_html(note) + "</p>\n";
  return text;
}

std::string ceiling_table(const Report& report) {
  std::string text = "<h2>Ceilings of this run</h2>\n<table>\n";
  for (const CeilingValues& values : report.ceilings) {
    const auto add = [&](const std::string& name, double rate, const char* unit) {
      text +=
          fmt::format("<tr><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{:.1f} {}</td></tr>\n",
                      escape_html(values.place()), escape_html(name), rate / kGiga, unit);
    };
    add("read, in order", values.read_bytes_per_second, "GB/s");
    for (const auto& [size, rate] : values.piece_read_bytes_per_second) {
      add(fmt::format("read, shuffled pieces of {} bytes", size), rate, "GB/s");
    }
    for (const auto& [size, rate] : values.cached_read_bytes_per_second) {
      add(fmt::format("read, {} bytes again and again", size), rate, "GB/s");
    }
    add("memcpy", values.copy_bytes_per_second, "GB/s");
    if (!values.device.empty()) {
      add("to the host", values.to_host_bytes_per_second, "GB/s");
      add("to the device", values.to_device_bytes_per_second, "GB/s");
    }
    for (const auto& [name, rate] : values.flops_per_second) add(name, rate, "GFLOP/s");
  }
  return text + "</table>\n";
}

std::string plots(const Report& report, const std::vector<std::string>& candidates) {
  std::string text;
  for (const CeilingValues& values : report.ceilings) {
    std::vector<const Result*> points;
    for (const Result& result : report.results) {
      const bool is_point = result.measured() && result.threads == values.threads && !result.hot &&
                            result.flops > 0 && result.bytes > 0 && result.seconds > 0;
      if (is_point) points.push_back(&result);
    }
    if (points.empty()) continue;
    text += fmt::format("<h2>Roofline, {}</h2>\n", escape_html(values.place()));
    text += roofline_svg(values, points, candidates);
  }
  if (text.empty()) return text;
  text += "<div class=\"legend\">\n";
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    text += fmt::format("<span><i class=\"c{}\"></i>{}</span>\n", i % kNumColours,
                        escape_html(candidates[i]));
  }
  return text + "</div>\n";
}

std::string ceiling_text(const Result& result) {
  const std::string& ceiling = result.ceiling;
  if (ceiling.starts_with("read ")) return fmt::format("reads of {} B", ceiling.substr(5));
  return result.is_bound_by_bytes() ? ceiling : ceiling + " peak";
}

std::string bar(const Result& result, const std::vector<std::string>& candidates) {
  const std::string name = result.threads > 0
                               ? fmt::format("{}, {} thr", result.candidate(), result.threads)
                               : result.candidate();
  if (!result.measured()) {
    return fmt::format("<div class=\"note\">{}: not run: {}</div>\n", escape_html(name),
                       escape_html(result.reason));
  }
  const double share = 100 * result.share_of_ceiling;
  const bool by_bytes = result.is_bound_by_bytes();
  const bool is_first = result.ratio_to_first == 1;  // exactly
  const std::string ratio = is_first ? "" : fmt::format(", {:.2f}x", result.ratio_to_first);
  return fmt::format(
      "<div class=\"bar\"><span>{}</span><div class=\"track\"><div class=\"fill c{}\" "
      "style=\"width:{:.1f}%\"></div></div><span class=\"share\">{:.1f} %</span>"
      "<span class=\"rate\">of {}; {}, {:.1f} {}{}</span></div>\n",
      escape_html(name), colour_of(candidates, result), std::min(share, 100.0), share,
      escape_html(ceiling_text(result)), time_text(result.typical_seconds()),
      (by_bytes ? result.bytes_per_second : result.flops_per_second) / kGiga,
      by_bytes ? "GB/s" : "GFLOP/s", ratio);
}

std::string bars(const Report& report, const std::vector<std::string>& candidates) {
  std::string text =
      "<h2>Share of the ceiling</h2>\n<p>Median over the rounds of the time that the ceiling "
      "allows over the time taken, both of one round. Times are the best of all rounds, those of "
      "devices the median; 2.00x: twice the time of the first, the median over the rounds.</p>\n";
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const Result& result = report.results[i];
    const bool begins = i == 0 || report.results[i - 1].name != result.name;
    if (begins) {
      text += fmt::format(
          "<div class=\"case\"><b>{}</b> <span class=\"note\">{}, {} layout, block "
          "{}</span>\n",
          escape_html(result.name), result.kv_dtype, result.layout, result.block_size);
    }
    text += bar(result, candidates);
    if (result.ratio_to_baseline > 0) {
      text += fmt::format("<div class=\"note\">{}: {:.2f} times the time of {}</div>\n",
                          escape_html(result.candidate()), result.ratio_to_baseline,
                          escape_html(result.baseline));
    }
    if (!result.notes.empty()) {
      text += "<div class=\"note\">" + escape_html(result.notes) + "</div>\n";
    }
    const bool ends = i + 1 == report.results.size() || report.results[i + 1].name != result.name;
    if (ends) text += "</div>\n";
  }
  return text;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string html_page(const Report& report) {
  const std::vector<std::string> candidates = candidates_of(report);
  return kHead + colour_rules() + header(report) + plots(report, candidates) +
         bars(report, candidates) + ceiling_table(report) + "</body>\n</html>\n";
}

}  // namespace quire::benchmark
