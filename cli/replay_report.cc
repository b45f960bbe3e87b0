// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "cli/text.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;
using replay::CachePlan;
using replay::ReplayReport;
using replay::Summary;

constexpr std::size_t kFirstShown = 2;  // of kShownPercents: the median

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
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
  fmt::print("cache         {} of {}, {}\n", counted(plan.num_blocks, "block"),
             counted(plan.block_size, "token"), bytes_text(plan.size_bytes()));
  fmt::print("hits          {} of {}, {}\n", grouped(report.hit_blocks),
             counted(report.full_blocks, "full block"),
             percent_text(report.hit_blocks, report.full_blocks));
  fmt::print("ideal         {}, {}: an endless cache, one request after another\n",
             grouped(report.ideal_hit_blocks),
             percent_text(report.ideal_hit_blocks, report.full_blocks));
  fmt::print("evictions     {}; {} stored, {} of them twice\n", grouped(blocks.num_evictions),
             counted(blocks.num_stored, "block"), grouped(blocks.num_duplicates));
  fmt::print("preemptions   {}: {} by recomputation, {} of a tail, {} by swap; {} lost\n",
             grouped(scheduler.num_preemptions()), grouped(scheduler.num_recomputes),
             grouped(scheduler.num_partial_releases), grouped(scheduler.num_swaps),
             counted(scheduler.num_lost_tokens, "token"));
  fmt::print("copies        {} on write, {} to the host, {} back (blocks)\n",
             grouped(blocks.num_copies), grouped(blocks.num_swapped_out),
             grouped(blocks.num_swapped_in));
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
  fmt::print("levels\n");
  print_summary("requests running", report.running);
  print_summary("requests waiting", report.waiting);
  print_summary("blocks in use, %", report.in_use, 100);
}

void print_message(std::string kind, const std::string& message) {
  constexpr std::size_t kWidth = 99;
  for (const std::string& line : lines_of(message, kWidth - kind.size())) {
    fmt::print("{}{}\n", kind, line);
    kind.assign(kind.size(), ' ');
  }
}

void print_messages(const ReplayReport& report) {
  constexpr std::size_t kMaxShown = 8;
  if (!report.messages.empty() || report.num_refused > 0) fmt::print("\n");
  for (const std::string& message : report.messages) print_message("violation: ", message);
  const std::size_t num_shown = std::min(report.refused.size(), kMaxShown);
  for (std::size_t i = 0; i < num_shown; ++i) {
    print_message("refused: ", to_string(report.refused[i]));
  }
  const std::int64_t num_left = report.num_refused - static_cast<std::int64_t>(num_shown);
  if (num_left > 0) fmt::print("refused: {}\n", counted(num_left, "more request"));
}

Json refused_json(const ReplayReport& report) {
  Json list = Json::array();
  for (const replay::RefusedRequest& request : report.refused) {
    list.push_back({{"request", request.index + 1},
                    {"input_length", request.input_length},
                    {"output_length", request.output_length},
                    {"reason", request.reason}});
  }
  return list;
}

}  // namespace

void print_report(const ReplayCommand& options, const CachePlan& plan, const ReplayReport& report) {
  fmt::print("requests      {}, {}, {}\n", grouped(report.num_requests),
             counted(report.prompt_tokens, "prompt token"),
             counted(report.output_tokens, "new token"));
  fmt::print("steps         {}, {} computed, {} on average\n", grouped(report.num_steps),
             counted(report.computed_tokens, "token"),
             number_text(static_cast<double>(report.computed_tokens) /
                         static_cast<double>(report.num_steps)));
  fmt::print("time          {} s for {} s of trace", number_text(report.wall_seconds),
             number_text(report.trace_seconds));
  if (report.computing_seconds > 0) {
    fmt::print("; attention {} s, {} tokens/s", number_text(report.computing_seconds),
               number_text(static_cast<double>(report.computed_tokens) / report.computing_seconds));
  }
  fmt::print("\n");
  print_cache(plan, report);
  if (report.num_refused > 0) {
    fmt::print("refused       {}, named below\n", counted(report.num_refused, "request"));
  }
  if (options.memory_only) {
    fmt::print("verified      nothing is computed; {}\n", counted(report.violations, "violation"));
  } else {
    fmt::print("verified      {}, largest error {:.3g}; {}\n",
               counted(report.verification.num_rows, "row"), report.verification.max_error,
               counted(report.violations, "violation"));
  }
  print_times(options, report);
  print_messages(report);
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
          {"num_refused", report.num_refused},
          {"refused", refused_json(report)},
          {"memory_only", options.memory_only},
          {"serial", options.replay.serial},
          {"scale", options.workload.scale},
          {"output_tokens", report.output_tokens},
          {"computed_tokens", report.computed_tokens},
          {"lost_tokens", scheduler.num_lost_tokens},
          {"computing_seconds", report.computing_seconds},
          {"trace_seconds", report.trace_seconds},
          {"hit_rate", share(report.hit_blocks, report.full_blocks)},
          {"ideal_hit_rate", share(report.ideal_hit_blocks, report.full_blocks)},
          {"block_size", plan.block_size},
          {"cache_blocks", plan.num_blocks},
          {"cache_bytes", plan.size_bytes()},
          {"watermark_blocks", plan.watermark_blocks},
          {"host_blocks", plan.num_host_blocks},
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
  std::string trace = options.trace;
  if (options.workload.scale != 1) {
    trace += fmt::format("; lengths divided by {}", options.workload.scale);
  }
  if (options.workload.time_scale != 1) {
    trace += fmt::format("; {:g} times as fast", options.workload.time_scale);
  }
  if (options.replay.serial) trace += "; one request after another";
  add("Trace", std::move(trace));
  add("Cache",
      fmt::format("{} of {}, {}; watermark {}, {} on the host{}", counted(plan.num_blocks, "block"),
                  counted(plan.block_size, "token"), bytes_text(plan.size_bytes()),
                  counted(plan.watermark_blocks, "block"), counted(plan.num_host_blocks, "block"),
                  plan.share_tails ? "; partly filled last blocks are shared" : ""));
  add("Scheduler",
      fmt::format("{} and {} in a step; {}, {}", counted(scheduler.max_tokens, "token"),
                  counted(scheduler.max_sequences, "request"),
                  options.workload.num_priorities == 1
                      ? "one class"
                      : fmt::format("{} classes", options.workload.num_priorities),
                  scheduler.aging_steps == 0
                      ? "nobody rises"
                      : fmt::format("one up every {}", counted(scheduler.aging_steps, "step"))));
  add("Model", fmt::format("{}, {} query and {} kv heads of {}, {}{}",
                           counted(options.num_layers, "layer"), options.num_q_heads,
                           options.num_kv_heads, options.head_dim, dtype_name(options.dtype),
                           options.memory_only ? "; not computed" : ", on " + options.backend));
  add("Clock of the trace",
      fmt::format("{:g} ms a step, {:g} us a token, {:g} ns a key; seed {}",
                  1e3 * options.replay.cost.step_s, 1e6 * options.replay.cost.token_s,
                  1e9 * options.replay.cost.key_s, options.workload.seed));
  return context;
}

}  // namespace quire::cli
