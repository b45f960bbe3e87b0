// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_report.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;
using replay::CachePlan;
using replay::ReplayReport;
using replay::Summary;

constexpr std::size_t kFirstShown = 2;  // of kShownPercents: the median

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kUnit = 1024;
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kUnit && unit + 1 < std::size(units)) {
    value /= kUnit;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, units[unit]);
}

// At most 8 characters at any magnitude.
std::string number_text(double value) {
  if (value == 0) return "0";
  if (value < 0.01) return fmt::format("{:.5f}", value);
  if (value < 10) return fmt::format("{:.3f}", value);
  if (value < 1000) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

void print_summary(const char* name, const Summary& summary, double factor = 1) {
  fmt::print("  {:<26}{:>9}", name, number_text(summary.mean * factor));
  for (std::size_t i = kFirstShown; i < replay::kShownPercents.size(); ++i) {
    fmt::print("{:>9}", number_text(summary.quantiles[i] * factor));
  }
  fmt::print("\n");
}

Json to_json(const Summary& summary) {
  Json json{{"mean", summary.mean}};
  for (std::size_t i = 0; i < replay::kShownPercents.size(); ++i) {
    json[fmt::format("p{:.0f}", replay::kShownPercents[i])] = summary.quantiles[i];
  }
  return json;
}

void print_cache(const CachePlan& plan, const ReplayReport& report) {
  const SchedulerStats& scheduler = report.scheduler;
  const BlockStats& blocks = report.blocks;
  fmt::print("cache         {} blocks of {} tokens, {}\n", plan.num_blocks, plan.block_size,
             bytes_text(plan.size_bytes()));
  fmt::print("hits          {} of {} full blocks, {:.1f} %\n", report.hit_blocks,
             report.full_blocks, percent(report.hit_blocks, report.full_blocks));
  fmt::print("ideal         {}, {:.1f} %: an endless cache, one request after another\n",
             report.ideal_hit_blocks, percent(report.ideal_hit_blocks, report.full_blocks));
  fmt::print("evictions     {}; {} blocks stored, {} of them twice\n", blocks.num_evictions,
             blocks.num_stored, blocks.num_duplicates);
  fmt::print("preemptions   {}: {} by recomputation, {} of a tail, {} by swap; {} tokens lost\n",
             scheduler.num_preemptions(), scheduler.num_recomputes, scheduler.num_partial_releases,
             scheduler.num_swaps, scheduler.num_lost_tokens);
  fmt::print("copies        {} on write, {} to the host, {} back (blocks)\n", blocks.num_copies,
             blocks.num_swapped_out, blocks.num_swapped_in);
}

void print_times(const ReplayCommand& options, const ReplayReport& report) {
  fmt::print("\n{:<28}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}\n",
             options.memory_only ? "simulated times" : "measured times", "mean", "p50", "p90",
             "p95", "p99", "max");
  print_summary("first token, s", report.ttft_s);
  print_summary("first token, steps", report.ttft_steps);
  print_summary("each further token, ms", report.token_s, 1000);
  print_summary("each further token, steps", report.token_steps);
  print_summary("in the queue, s", report.queue_s);
  print_summary("in the queue, steps", report.queue_steps);
  print_summary("whole request, s", report.total_s);
  fmt::print("{:<28}\n", "levels");
  print_summary("requests running", report.running);
  print_summary("requests waiting", report.waiting);
  print_summary("blocks in use, %", report.in_use, 100);
}

}  // namespace

void print_report(const ReplayCommand& options, const CachePlan& plan, const ReplayReport& report) {
  fmt::print("requests      {}, {} prompt tokens, {} new tokens\n", report.num_requests,
             report.prompt_tokens, report.output_tokens);
  fmt::print("steps         {}, {} tokens computed, {:.1f} on average\n", report.num_steps,
             report.computed_tokens,
             static_cast<double>(report.computed_tokens) / static_cast<double>(report.num_steps));
  fmt::print("time          {:.1f} s for {:.0f} s of trace", report.wall_seconds,
             report.trace_seconds);
  if (report.computing_seconds > 0) {
    fmt::print("; attention {:.1f} s, {:.0f} tokens/s", report.computing_seconds,
               static_cast<double>(report.computed_tokens) / report.computing_seconds);
  }
  fmt::print("\n");
  print_cache(plan, report);
  fmt::print("verified      {} rows, largest error {:.3g}; {} violations\n",
             report.verification.num_rows, report.verification.max_error, report.violations);
  print_times(options, report);
  for (const std::string& message : report.messages) fmt::print("violation: {}\n", message);
}

Json report_json(const ReplayCommand& options, const CachePlan& plan, const ReplayReport& report) {
  const BlockStats& blocks = report.blocks;
  const SchedulerStats& scheduler = report.scheduler;
  return {{"requests", report.num_requests},
          {"steps", report.num_steps},
          {"seconds", report.wall_seconds},
          {"prompt_tokens", report.prompt_tokens},
          {"full_blocks", report.full_blocks},
          {"hit_blocks", report.hit_blocks},
          {"ideal_hit_blocks", report.ideal_hit_blocks},
          {"preemptions", scheduler.num_preemptions()},
          {"evictions", blocks.num_evictions},
          {"copies", blocks.num_copies + blocks.num_swapped_out + blocks.num_swapped_in},
          {"violations", report.violations},
          {"verified_rows", report.verification.num_rows},
          {"max_error", report.verification.max_error},
          {"messages", report.messages},
          {"memory_only", options.memory_only},
          {"serial", options.replay.serial},
          {"scale", options.workload.scale},
          {"output_tokens", report.output_tokens},
          {"computed_tokens", report.computed_tokens},
          {"lost_tokens", scheduler.num_lost_tokens},
          {"computing_seconds", report.computing_seconds},
          {"trace_seconds", report.trace_seconds},
          {"hit_rate", percent(report.hit_blocks, report.full_blocks) / 100},
          {"ideal_hit_rate", percent(report.ideal_hit_blocks, report.full_blocks) / 100},
          {"block_size", plan.block_size},
          {"cache_blocks", plan.num_blocks},
          {"cache_bytes", plan.size_bytes()},
          {"preemptions_by_kind",
           {{"recompute", scheduler.num_recomputes},
            {"partial", scheduler.num_partial_releases},
            {"swap", scheduler.num_swaps}}},
          {"copied_on_write_blocks", blocks.num_copies},
          {"swapped_out_blocks", blocks.num_swapped_out},
          {"swapped_in_blocks", blocks.num_swapped_in},
          {"ttft_s", to_json(report.ttft_s)},
          {"ttft_steps", to_json(report.ttft_steps)},
          {"token_s", to_json(report.token_s)},
          {"token_steps", to_json(report.token_steps)},
          {"queue_s", to_json(report.queue_s)},
          {"queue_steps", to_json(report.queue_steps)},
          {"total_s", to_json(report.total_s)},
          {"running", to_json(report.running)},
          {"waiting", to_json(report.waiting)},
          {"blocks_in_use", to_json(report.in_use)}};
}

replay::HtmlContext html_context(const ReplayCommand& options, const CachePlan& plan) {
  const SchedulerOptions& scheduler = options.scheduler;
  replay::HtmlContext context{.title = "quire replay: " + options.trace,
                              .is_computed = !options.memory_only,
                              .settings = {}};
  const auto add = [&](const char* name, std::string value) {
    context.settings.emplace_back(name, std::move(value));
  };
  add("Trace", fmt::format("{}, lengths divided by {}, {} times as fast{}", options.trace,
                           options.workload.scale, options.workload.time_scale,
                           options.replay.serial ? ", one request after another" : ""));
  add("Cache", fmt::format("{} blocks of {} tokens, {}; watermark {} blocks, {} on the host",
                           plan.num_blocks, plan.block_size, bytes_text(plan.size_bytes()),
                           plan.watermark_blocks, plan.num_host_blocks));
  add("Scheduler",
      fmt::format("{} tokens and {} requests in a step, {} priorities, a class every {} steps",
                  scheduler.max_tokens, scheduler.max_sequences, options.workload.num_priorities,
                  scheduler.aging_steps));
  add("Model", fmt::format("{} layers, {} query and {} kv heads of {}, {}{}", options.num_layers,
                           options.num_q_heads, options.num_kv_heads, options.head_dim,
                           dtype_name(options.dtype),
                           options.memory_only ? "; not computed" : ", on " + options.backend));
  add("Clock of the trace",
      fmt::format("{:g} ms a step, {:g} us a token, {:g} ns a key; seed {}",
                  1e3 * options.replay.cost.step_s, 1e6 * options.replay.cost.token_s,
                  1e9 * options.replay.cost.key_s, options.workload.seed));
  return context;
}

}  // namespace quire::cli
