// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_table.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "cli/wrapped_text.h"
#include "quire/registry.h"

namespace quire::cli {
namespace {

using benchmark::CeilingValues;
using benchmark::Comparison;
using benchmark::Report;
using benchmark::Result;

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

bool is_plugin(const std::string& backend) {
  const std::span<const BackendEntry> table = backend_table();
  return std::any_of(table.begin(), table.end(), [&](const BackendEntry& entry) {
    return entry.plugin && backend == entry.name;
  });
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

// In the unit of the ceiling that bounds the case.
std::string rate_text(const Result& result) {
  const bool by_bytes = result.is_bound_by_bytes();
  const double rate = by_bytes ? result.bytes_per_second : result.flops_per_second;
  if (rate >= kTera) return fmt::format("{:.2f} {}", rate / kTera, by_bytes ? "TB/s" : "TF/s");
  return fmt::format("{:.1f} {}", rate / kGiga, by_bytes ? "GB/s" : "GF/s");
}

void print_device_ceilings(const CeilingValues& values) {
  fmt::print("{}: read {:.0f} GB/s, copy {:.0f} GB/s", values.device,
             values.read_bytes_per_second / kGiga, values.copy_bytes_per_second / kGiga);
  for (const auto& [name, rate] : values.flops_per_second) {
    fmt::print(", {} {:.0f} TFLOP/s", name, rate / kTera);
  }
  fmt::print("\n            to host {:.1f} GB/s, to device {:.1f} GB/s",
             values.to_host_bytes_per_second / kGiga, values.to_device_bytes_per_second / kGiga);
  for (const auto& [size, rate] : values.cached_read_bytes_per_second) {
    fmt::print(", {:.0f} MB cached {:.0f} GB/s", static_cast<double>(size) / 1e6, rate / kGiga);
  }
  fmt::print("\n");
}

void print_ceilings(const CeilingValues& values) {
  if (!values.device.empty()) return print_device_ceilings(values);
  fmt::print("{}: read {:.1f} GB/s, memcpy {:.1f} GB/s", values.place(),
             values.read_bytes_per_second / kGiga, values.copy_bytes_per_second / kGiga);
  for (const auto& [size, rate] : values.piece_read_bytes_per_second) {
    fmt::print(", pieces of {} B {:.1f}", size, rate / kGiga);
  }
  fmt::print("\n  GFLOP/s:");
  for (const auto& [name, rate] : values.flops_per_second) {
    fmt::print(" {} {:.0f}", name, rate / kGiga);
  }
  fmt::print("\n");
}

// On a device the time of a layer, and of what all layers share.
void print_device_times(const Result& result) {
  if (result.gather_seconds > 0) {
    fmt::print("    {}: apart from it, {} for the gather of every layer, {} of planning\n",
               result.timing, time_text(result.gather_seconds), time_text(result.setup_seconds));
  } else if (result.layers_per_plan > 0) {
    fmt::print("    {}: {} and 1/{} of planning, {}\n", result.timing,
               time_text(result.layer_seconds), result.layers_per_plan,
               time_text(result.setup_seconds));
  } else if (result.setup_seconds > 0) {
    fmt::print("    {}: planning in it, {}\n", result.timing, time_text(result.setup_seconds));
  } else {
    fmt::print("    {}: the host is back after {}\n", result.timing,
               time_text(result.host_seconds));
  }
}

std::string ratio_text(double ratio) {
  return ratio < 100 ? fmt::format("{:.2f}", ratio) : fmt::format("{:.0f}", ratio);
}

void print_result(const Result& result, bool is_first_of_case) {
  const std::string name = is_first_of_case ? result.name : "";
  if (!result.measured()) {
    fmt::print("{:<31}{:<16}{:>3}  not run:\n", name, result.candidate(), result.threads);
    print_wrapped(result.reason, 4);
    return;
  }
  fmt::print("{:<31}{:<16}{:>3}{:>11}{:>12}{:>7.1f}% {:<12}{:>6}\n", name, result.candidate(),
             result.threads, time_text(result.typical_seconds()), rate_text(result),
             100 * result.share_of_ceiling, result.ceiling, ratio_text(result.ratio_to_first));
  if (result.ratio_to_baseline > 0) {
    fmt::print("    {:.2f}x the time of {}\n", result.ratio_to_baseline, result.baseline);
  }
  if (result.on_device()) {
    print_device_times(result);
    if (!result.notes.empty()) fmt::print("    {}\n", result.notes);
    return;
  }
  // Models and primitives are made once; caches that warm up, all have. Peers of another library
  // always show it.
  constexpr double kWarmUp = 3;
  if (is_plugin(result.backend) ||
      result.first_seconds > kWarmUp * (result.seconds + result.setup_seconds) + 1e-3) {
    fmt::print("    set-up apart: {} with the first call, {} in every step\n",
               time_text(result.first_seconds), time_text(result.setup_seconds));
  }
  if (result.gather_seconds > 0) {
    fmt::print("    {} of it is the gather of K and V\n", time_text(result.gather_seconds));
  }
  if (!result.notes.empty()) fmt::print("    {}\n", result.notes);
}

std::string device_text(const DeviceFacts& facts) {
  return fmt::format("{} ({}), {} processors, cache {} MiB, {} GiB, {}", facts.name,
                     facts.architecture, facts.num_processors, facts.cache_bytes >> 20,
                     facts.memory_bytes >> 30, facts.version);
}

// Hosts and devices have different ones.
std::vector<std::string> peaks_of(const Report& report) {
  std::vector<std::string> names;
  for (const CeilingValues& values : report.ceilings) {
    for (const auto& [name, rate] : values.flops_per_second) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::string peak_text(const CeilingValues& values, const std::string& wanted) {
  for (const auto& [name, rate] : values.flops_per_second) {
    if (name == wanted) return fmt::format("{:.0f}", rate / kGiga);
  }
  return "-";
}

void print_markdown_row(const Result& r) {
  if (!r.measured()) {
    fmt::print("| {} | {} | {} | - | - | - | {} |\n", r.name, r.candidate(), r.threads, r.reason);
    return;
  }
  std::string more;
  if (r.ratio_to_baseline > 0) {
    more = fmt::format("; {:.2f}x the time of {}", r.ratio_to_baseline, r.baseline);
  }
  if (r.gather_seconds > 0) {
    more += fmt::format("; gather {} {}", r.gather_in_seconds ? "of it" : "apart",
                        time_text(r.gather_seconds));
  }
  if (r.layers_per_plan > 0) more += fmt::format("; planning {}", time_text(r.setup_seconds));
  fmt::print("| {} | {} | {} | {} | {} | {:.1f} % | {}{} |\n", r.name, r.candidate(), r.threads,
             time_text(r.typical_seconds()), rate_text(r), 100 * r.share_of_ceiling, r.ceiling,
             more);
}

}  // namespace

void print_report(const Report& report) {
  fmt::print("{}, {} CPUs, last-level cache {} MiB\n", report.machine.cpu.model,
             report.machine.cpu.num_cpus, report.machine.last_level_cache_bytes >> 20);
  for (const DeviceFacts& facts : report.devices) fmt::print("{}\n", device_text(facts));
  for (const CeilingValues& values : report.ceilings) print_ceilings(values);
  for (const std::string& note : report.notes) fmt::print("{}\n", note);
  fmt::print("\n{:<31}{:<16}{:>3}{:>11}{:>12}{:>8} {:<12}{:>6}\n", "case", "candidate", "thr",
             report.devices.empty() ? "best time" : "time", "rate", "share", "of", "ratio");
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
  for (const DeviceFacts& facts : report.devices) fmt::print("{}\n\n", device_text(facts));
  for (const std::string& note : report.notes) fmt::print("{}\n\n", note);
  fmt::print("| ceiling |");
  for (const CeilingValues& values : report.ceilings) fmt::print(" {} |", values.place());
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
  for (const std::string& name : peaks_of(report)) {
    fmt::print("\n| {}, GFLOP/s |", name);
    for (const CeilingValues& c : report.ceilings) fmt::print(" {} |", peak_text(c, name));
  }
  fmt::print("\n\n| case | candidate | threads | {} | rate | share | of |\n",
             report.devices.empty() ? "best time" : "time");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const Result& r : report.results) print_markdown_row(r);
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
