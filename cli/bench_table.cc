// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_table.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <string>

namespace quire::cli {
namespace {

using benchmark::CeilingValues;
using benchmark::Comparison;
using benchmark::Report;
using benchmark::Result;

constexpr double kGiga = 1e9;

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

// In the unit of the ceiling that bounds the case.
std::string rate_text(const Result& result) {
  const bool by_bytes = result.ceiling.starts_with("read") || result.ceiling == "memcpy";
  const double rate = by_bytes ? result.bytes_per_second : result.flops_per_second;
  return fmt::format("{:.1f} {}", rate / kGiga, by_bytes ? "GB/s" : "GF/s");
}

void print_ceilings(const CeilingValues& values) {
  fmt::print("{} thread{}: read {:.1f} GB/s, memcpy {:.1f} GB/s", values.threads,
             values.threads == 1 ? "" : "s", values.read_bytes_per_second / kGiga,
             values.copy_bytes_per_second / kGiga);
  for (const auto& [size, rate] : values.piece_read_bytes_per_second) {
    fmt::print(", pieces of {} B {:.1f}", size, rate / kGiga);
  }
  fmt::print("\n           ");
  for (const auto& [name, rate] : values.flops_per_second) {
    fmt::print(" {} {:.0f}", name, rate / kGiga);
  }
  fmt::print(" GFLOP/s\n");
}

void print_result(const Result& result, bool is_first_of_case) {
  const std::string name = is_first_of_case ? result.name : "";
  if (!result.measured()) {
    fmt::print("{:<28}{:<17}{:>3}  not run: {}\n", name, result.candidate(), result.threads,
               result.reason.substr(0, 38));
    return;
  }
  fmt::print("{:<28}{:<17}{:>3}{:>11}{:>12}{:>7.1f}% {:<12}{:>6.2f}\n", name, result.candidate(),
             result.threads, time_text(result.seconds), rate_text(result),
             100 * result.share_of_ceiling, result.ceiling, result.ratio_to_first);
  if (result.ratio_to_baseline > 0) {
    fmt::print("    {:.2f}x the time of {}\n", result.ratio_to_baseline, result.baseline);
  }
  // Models and primitives are made once; caches that warm up, all have.
  constexpr double kWarmUp = 3;
  if (result.first_seconds > kWarmUp * (result.seconds + result.setup_seconds) + 1e-3) {
    fmt::print("    set-up apart: {} with the first call, {} in every step\n",
               time_text(result.first_seconds), time_text(result.setup_seconds));
  }
  if (!result.notes.empty()) fmt::print("    {}\n", result.notes);
}

}  // namespace

void print_report(const Report& report) {
  fmt::print("{}, {} CPUs, last-level cache {} MiB\n", report.machine.cpu.model,
             report.machine.cpu.num_cpus, report.machine.last_level_cache_bytes >> 20);
  for (const CeilingValues& values : report.ceilings) print_ceilings(values);
  for (const std::string& note : report.notes) fmt::print("{}\n", note);
  fmt::print("\n{:<28}{:<17}{:>3}{:>11}{:>12}{:>8} {:<12}{:>6}\n", "case", "candidate", "thr",
             "best time", "rate", "share", "of", "ratio");
  std::string last;
  for (const Result& result : report.results) {
    print_result(result, result.name != last);
    last = result.name;
  }
}

void print_markdown(const Report& report) {
  fmt::print("{}, {} CPUs, last-level cache {} MiB, {}, {}, {}\n\n", report.machine.cpu.model,
             report.machine.cpu.num_cpus, report.machine.last_level_cache_bytes >> 20,
             report.machine.kernel, report.machine.compiler, report.machine.date.substr(0, 10));
  for (const std::string& note : report.notes) fmt::print("{}\n\n", note);
  fmt::print("| ceiling |");
  for (const CeilingValues& values : report.ceilings) fmt::print(" {} threads |", values.threads);
  fmt::print("\n|---|");
  for (std::size_t i = 0; i < report.ceilings.size(); ++i) fmt::print("---|");
  fmt::print("\n| read, GB/s |");
  for (const CeilingValues& c : report.ceilings) {
    fmt::print(" {:.1f} |", c.read_bytes_per_second / kGiga);
  }
  fmt::print("\n| memcpy, GB/s |");
  for (const CeilingValues& c : report.ceilings) {
    fmt::print(" {:.1f} |", c.copy_bytes_per_second / kGiga);
  }
  const std::size_t num_peaks =
      report.ceilings.empty() ? 0 : report.ceilings.front().flops_per_second.size();
  for (std::size_t i = 0; i < num_peaks; ++i) {
    fmt::print("\n| {}, GFLOP/s |", report.ceilings.front().flops_per_second[i].first);
    for (const CeilingValues& c : report.ceilings) {
      fmt::print(" {:.0f} |", c.flops_per_second[i].second / kGiga);
    }
  }
  fmt::print("\n\n| case | candidate | threads | best time | rate | share | of |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const Result& r : report.results) {
    if (!r.measured()) {
      fmt::print("| {} | {} | {} | - | - | - | {} |\n", r.name, r.candidate(), r.threads, r.reason);
      continue;
    }
    const std::string versus =
        r.ratio_to_baseline > 0
            ? fmt::format("; {:.2f}x the time of {}", r.ratio_to_baseline, r.baseline)
            : "";
    fmt::print("| {} | {} | {} | {} | {} | {:.1f} % | {}{} |\n", r.name, r.candidate(), r.threads,
               time_text(r.seconds), rate_text(r), 100 * r.share_of_ceiling, r.ceiling, versus);
  }
}

void print_comparisons(const std::vector<Comparison>& comparisons, double margin) {
  fmt::print("\n{:<38}{:<17}{:>3}{:>9}{:>9}  change beyond {:.0f} %\n", "compared with before",
             "candidate", "thr", "old", "new", 100 * margin);
  for (const Comparison& c : comparisons) {
    fmt::print("{:<38}{:<17}{:>3}{:>8.1f}%{:>8.1f}%  {}\n", c.name, c.candidate, c.threads,
               100 * c.old_share, 100 * c.new_share, benchmark::change_name(c.change));
    if (!c.reason.empty()) fmt::print("    {}\n", c.reason);
  }
  if (comparisons.empty()) fmt::print("nothing that both runs hold\n");
}

}  // namespace quire::cli
