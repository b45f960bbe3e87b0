// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

namespace quire::cli {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

void add_workload(CLI::App& command, ReplayCommand& options) {
  const char* group = "Workload";
  const auto add = [&](auto* option) { return option->group(group); };
  add(command.add_option("--requests", options.max_requests, "Only the first of the trace"))
      ->check(CLI::Range(std::int64_t{1}, kMaxCount));
  add(command.add_option("--scale", options.workload.scale,
                         "Lengths are divided by it; default 64, memory only: 1"))
      ->check(CLI::Range(std::int64_t{1}, replay::kMaxTraceLength));
  add(command.add_option("--time-scale", options.workload.time_scale,
                         "Requests come so many times as fast"))
      ->capture_default_str();
  add(command.add_option("--seed", options.workload.seed, "Of tokens, classes, verified rows"))
      ->capture_default_str();
  add(command.add_option("--trace-block", options.workload.block_tokens, "Tokens of one hash id"))
      ->capture_default_str();
  add(command.add_option("--priorities", options.workload.num_priorities,
                         "Classes that requests are drawn from"))
      ->capture_default_str();
  add(command.add_flag("--serial", options.replay.serial,
                       "A request comes when the one before has ended"));
}

void add_cache(CLI::App& command, ReplayCommand& options) {
  const char* group = "Cache";
  command
      .add_option("--cache-blocks", options.cache_blocks,
                  "Its size; memory only default: nothing is ever evicted")
      ->check(CLI::Range(std::int64_t{1}, kMaxCount))
      ->group(group);
  command
      .add_option("--cache-bytes", options.cache_bytes,
                  "Its size, as in 512MiB; default of what computes: 256MiB or less")
      ->transform(CLI::AsSizeValue(false))
      ->excludes("--cache-blocks")
      ->group(group);
  command.add_option("--host-blocks", options.host_blocks, "Room for swapped requests on the host")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
      ->group(group);
  command
      .add_option("--block-size", options.block_size,
                  "Tokens; default: those of one hash id, divided by the scale")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command
      .add_option("--watermark", options.watermark_blocks,
                  "Blocks that admission leaves; default 1 % if a size is given")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
      ->group(group);
  command
      .add_flag("--share-tails", options.share_tails,
                "Partly filled last blocks are found too, and copied")
      ->group(group);
}

void add_scheduler(CLI::App& command, ReplayCommand& options) {
  const char* group = "Scheduler";
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->capture_default_str()->group(group);
  };
  add("--token-budget", options.scheduler.max_tokens, "Tokens of a step");
  add("--max-sequences", options.scheduler.max_sequences, "Requests that run at once");
  add("--max-chunk", options.scheduler.max_chunk, "Tokens of one request in a step; 0: the budget");
  add("--aging", options.scheduler.aging_steps, "Steps in which a request rises by one class");
  command.add_option("--policy", options.policy, "Order: by rank, or what is cached first")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Policy>{{"rank", Policy::kRank}, {"prefix", Policy::kPrefix}}))
      ->option_text("rank|prefix")
      ->group(group);
  command.add_option("--preemption", options.preemption, "How blocks are taken; auto: by cost")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, PreemptionMode>{{"auto", PreemptionMode::kAuto},
                                                {"recompute", PreemptionMode::kRecompute},
                                                {"partial", PreemptionMode::kPartial},
                                                {"swap", PreemptionMode::kSwap}}))
      ->option_text("auto|recompute|partial|swap")
      ->group(group);
}

void add_model(CLI::App& command, ReplayCommand& options) {
  const char* group = "Model";
  const auto add = [&](const char* name, int& value, const char* text) {
    command.add_option(name, value, text)->check(CLI::Range(1, 4096))->group(group);
  };
  add("--layers", options.num_layers, "Default 2, memory only: 32");
  add("--q-heads", options.num_q_heads, "Default 4, memory only: 32");
  add("--kv-heads", options.num_kv_heads, "Default 2, memory only: 8");
  add("--head-dim", options.head_dim, "Default 64, memory only: 128");
  command
      .add_option_function<DType>(
          "--dtype",
          [&options](const DType& dtype) {
            options.dtype = dtype;
            options.has_dtype = true;
          },
          "Of Q, K and V; default f32, memory only: bf16")
      ->transform(CLI::CheckedTransformer(std::map<std::string, DType>{
          {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}}))
      ->option_text("f32|f16|bf16")
      ->group(group);
  command.add_option("--backend", options.backend, "Default: QUIRE_BACKEND, else cpu")
      ->group(group);
  command.add_option("--threads", options.num_threads, "Of a CPU backend; 0: all")
      ->check(CLI::Range(0, 4096))
      ->group(group);
}

void add_checks_and_clock(CLI::App& command, ReplayCommand& options) {
  command
      .add_option("--verify", options.verified_rows,
                  "Rows of every step that are compared with the reference")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group("Checks");
  command
      .add_option("--validate", options.replay.validate_interval,
                  "Steps between two checks of the whole state; 0: only at the end")
      ->check(CLI::Range(std::int64_t{0}, kMaxCount))
      ->group("Checks");
  // A range holds nothing against NaN, which is neither below nor above.
  const auto is_number = [](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : std::string();
  };
  const auto add = [&](const char* name, double& value, double unit, const char* text) {
    command
        .add_option_function<double>(
            name, [&value, unit](double number) { value = number * unit; }, text)
        ->check(CLI::Range(0.0, 1e9))
        ->check(is_number)
        ->group("Clock of the trace");
  };
  add("--step-ms", options.replay.cost.step_s, 1e-3, "What a step costs: 5");
  add("--token-us", options.replay.cost.token_s, 1e-6, "And each of its tokens: 10");
  add("--key-ns", options.replay.cost.key_s, 1e-9, "And each key that a token sees: 0.33");
}

}  // namespace

void ReplayCommand::complete() {
  const auto or_else = [](auto& value, auto other) {
    if (value == 0) value = other;
  };
  or_else(workload.scale, memory_only ? 1 : 64);
  or_else(block_size, static_cast<int>(std::max<std::int64_t>(
                          workload.block_tokens / std::max<std::int64_t>(workload.scale, 1), 1)));
  or_else(num_layers, memory_only ? 32 : 2);
  or_else(num_q_heads, memory_only ? 32 : 4);
  or_else(num_kv_heads, memory_only ? 8 : 2);
  or_else(head_dim, memory_only ? 128 : 64);
  if (!has_dtype) dtype = memory_only ? DType::kBF16 : DType::kF32;
  const char* named = std::getenv("QUIRE_BACKEND");
  if (backend.empty()) backend = named != nullptr && *named != '\0' ? named : "cpu";
  if (policy == Policy::kPrefix) scheduler.prefix = {.window = 16, .wait_for_shared = true};
  PreemptionOptions& costs = scheduler.preemption;
  costs.token_seconds = replay.cost.token_s;
  costs.key_seconds = replay.cost.key_s;
  if (preemption == PreemptionMode::kAuto) return;
  costs.allow_partial = preemption == PreemptionMode::kPartial;
  costs.allow_swap = preemption == PreemptionMode::kSwap;
  if (preemption == PreemptionMode::kSwap) costs.byte_seconds = 0;
}

void add_replay_options(CLI::App& command, ReplayCommand& options) {
  command
      .add_option("TRACE", options.trace, "JSON lines or CSV (docs/replay.md); -: standard input")
      ->required();
  command.add_flag("--memory-only", options.memory_only,
                   "Scheduler and block manager alone, at full size");
  command.add_flag("--json", options.json, "One JSON document on standard output");
  command.add_option("--html", options.html, "Write a report as one page to this file");
  command.add_option("--chrome-trace", options.chrome_trace,
                     "Write steps and requests for Perfetto to this file");
  add_workload(command, options);
  add_cache(command, options);
  add_scheduler(command, options);
  add_model(command, options);
  add_checks_and_clock(command, options);
}

}  // namespace quire::cli
