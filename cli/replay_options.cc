// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checked_int.h"
#include "cli/option_values.h"
#include "cli/text.h"
#include "replay/cache_plan.h"

namespace quire::cli {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBlockSize = 1 << 20;

void add_files(CLI::App& command, ReplayCommand& options) {
  command
      .add_option("TRACE", options.trace, "JSON lines or CSV (docs/replay.md); -: standard input")
      ->required()
      ->check(name_of("a file"));
  command.add_flag("--memory-only", options.memory_only,
                   "Scheduler and block manager alone, at full size");
  command.add_flag("--json", options.json, "One JSON document on standard output");
  command.add_option("--html", options.html, "Write a report as one page to this file")
      ->check(name_of("a file"))
      ->type_name("FILE");
  command
      .add_option("--chrome-trace", options.chrome_trace,
                  "Write steps and requests for Perfetto to this file")
      ->check(name_of("a file"))
      ->type_name("FILE");
}

void add_workload(CLI::App& command, ReplayCommand& options) {
  const auto add = [&](const char* name, auto& value, const CLI::Validator& check,
                       const char* text) {
    return command.add_option(name, value, help_text(text))->transform(check)->group("Workload");
  };
  add("--requests", options.max_requests, whole_number(1, kMaxCount),
      "Only the first so many of the trace; default: all");
  add("--scale", options.workload.scale, whole_number(1, replay::kMaxTraceLength),
      "Lengths are divided by it; default 64, memory only: 1");
  add("--time-scale", options.workload.time_scale,
      real_number(replay::kMinTimeScale, replay::kMaxTimeScale),
      "Requests come so many times as fast")
      ->capture_default_str();
  add("--seed", options.workload.seed, seed_number(), "Of tokens, classes, verified rows")
      ->capture_default_str();
  add("--trace-block", options.workload.block_tokens, whole_number(1, replay::kMaxTraceLength),
      "Tokens of one hash id")
      ->capture_default_str();
  add("--priorities", options.workload.num_priorities, whole_number(1, replay::kMaxPriorities),
      "Classes that requests are drawn from")
      ->capture_default_str();
  command
      .add_flag("--serial", options.replay.serial, "A request comes when the one before has ended")
      ->group("Workload");
}

void add_cache(CLI::App& command, ReplayCommand& options) {
  const char* group = "Cache";
  const auto add = [&](const char* name, auto& value, std::int64_t minimum, std::int64_t maximum,
                       const char* text) {
    return command.add_option(name, value, help_text(text))
        ->transform(whole_number(minimum, maximum))
        ->group(group);
  };
  CLI::Option* blocks = add("--cache-blocks", options.cache_blocks, 1, replay::kMaxCacheBlocks,
                            "Its size, without the null block; default: nothing is ever evicted, "
                            "but where attention is computed at most 256MiB, or what the largest "
                            "request needs");
  command
      .add_option("--cache-bytes", options.cache_bytes, "Its size in all, as in 512MiB or 80GiB")
      ->transform(byte_size())
      ->excludes(blocks)
      ->option_text("SIZE Excludes: --cache-blocks")
      ->group(group);
  blocks->option_text("INT Excludes: --cache-bytes");
  add("--host-blocks", options.host_blocks, 0, replay::kMaxCacheBlocks,
      "Room for swapped requests on the host; default 0: none is swapped");
  add("--block-size", options.block_size, 1, kMaxBlockSize,
      "Tokens; default: those of one hash id, divided by the scale");
  add("--watermark", options.watermark_blocks, 0, replay::kMaxCacheBlocks,
      "Blocks that admission leaves free; default: 1 % of a size that is given, else 0");
  command
      .add_flag("--share-tails", options.share_tails,
                "Partly filled last blocks are found too, and copied")
      ->group(group);
  command
      .add_flag("--skip-too-large", options.skip_too_large,
                help_text("Refuse and list requests that the cache can never hold; without it they "
                          "are an error"))
      ->group(group);
}

void add_scheduler(CLI::App& command, ReplayCommand& options) {
  const char* group = "Scheduler";
  const auto add = [&](const char* name, auto& value, std::int64_t minimum, std::int64_t maximum,
                       const char* text) {
    command.add_option(name, value, help_text(text))
        ->capture_default_str()
        ->transform(whole_number(minimum, maximum))
        ->group(group);
  };
  SchedulerOptions& scheduler = options.scheduler;
  add("--token-budget", scheduler.max_tokens, 1, replay::kMaxTraceLength, "Tokens of a step");
  add("--max-sequences", scheduler.max_sequences, 1, 1 << 20, "Requests that run at once");
  add("--max-chunk", scheduler.max_chunk, 0, replay::kMaxTraceLength,
      "Tokens of one request in a step; 0: the budget");
  add("--aging", scheduler.aging_steps, 0, 1 << 30,
      "Steps in which a request rises by one class; 0: it never does");
  command
      .add_option("--policy", options.policy,
                  "Order: by rank, or what is cached first; default rank")
      ->transform(one_of<Policy>({{"rank", Policy::kRank}, {"prefix", Policy::kPrefix}}))
      ->option_text("rank|prefix")
      ->group(group);
  command
      .add_option("--preemption", options.preemption,
                  "How blocks are taken from a request; default auto: by cost")
      ->transform(one_of<PreemptionMode>({{"auto", PreemptionMode::kAuto},
                                          {"recompute", PreemptionMode::kRecompute},
                                          {"partial", PreemptionMode::kPartial},
                                          {"swap", PreemptionMode::kSwap}}))
      ->option_text("auto|recompute|partial|swap")
      ->group(group);
}

void add_model(CLI::App& command, ReplayCommand& options) {
  const char* group = "Model";
  const auto add = [&](const char* name, int& value, int minimum, const char* text) {
    command.add_option(name, value, help_text(text))
        ->transform(whole_number(minimum, 4096))
        ->group(group);
  };
  add("--layers", options.num_layers, 1, "Default 2, memory only: 32");
  add("--q-heads", options.num_q_heads, 1, "Default 4, memory only: 32");
  add("--kv-heads", options.num_kv_heads, 1, "Default 2, memory only: 8");
  add("--head-dim", options.head_dim, 1, "Default 64, memory only: 128");
  command
      .add_option_function<DType>(
          "--dtype",
          [&options](const DType& dtype) {
            options.dtype = dtype;
            options.has_dtype = true;
          },
          "Of Q, K and V; default f32, memory only: bf16")
      ->transform(
          one_of<DType>({{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}}))
      ->option_text("f32|f16|bf16")
      ->group(group);
  command.add_option("--backend", options.backend, "Default: QUIRE_BACKEND, else cpu")
      ->check(name_of("a backend"))
      ->type_name("NAME")
      ->group(group);
  add("--threads", options.num_threads, 0, "Of a CPU backend; default 0: all");
}

void add_checks_and_clock(CLI::App& command, ReplayCommand& options) {
  command
      .add_option("--verify", options.verified_rows,
                  "Rows of every step that are compared with the reference")
      ->capture_default_str()
      ->transform(whole_number(0, 1 << 20))
      ->group("Checks");
  command
      .add_option("--validate", options.replay.validate_interval,
                  help_text("Steps between two checks of the whole state; 0: only at the end; "
                            "default: an eighth of the blocks, at least 64"))
      ->transform(whole_number(0, kMaxCount))
      ->group("Checks");
  command
      .add_flag("--canary", options.canary,
                "Every step looks for writes to what belongs to other requests; slow")
      ->group("Checks");
  const auto add = [&](const char* name, double& value, double unit, const char* text) {
    command
        .add_option_function<double>(
            name, [&value, unit](double number) { value = number * unit; }, text)
        ->check(real_number(0, 1e6))
        ->default_str(fmt::format("{:g}", value / unit))
        ->group("Clock of the trace");
  };
  add("--step-ms", options.replay.cost.step_s, 1e-3, "What a step costs");
  add("--token-us", options.replay.cost.token_s, 1e-6, "And each of its tokens");
  add("--key-ns", options.replay.cost.key_s, 1e-9, "And each key that a token sees");
}

// What single flags allow but not together, in the words of the flags.
void require_consistent(const ReplayCommand& options) {
  const SchedulerOptions& scheduler = options.scheduler;
  require(scheduler.max_tokens >= scheduler.max_sequences, "--token-budget ", scheduler.max_tokens,
          ": must be at least --max-sequences ", scheduler.max_sequences,
          ", so that all that run can decode");
  require(options.num_q_heads % options.num_kv_heads == 0, "--q-heads ", options.num_q_heads,
          ": must be a multiple of --kv-heads ", options.num_kv_heads);
  require(options.preemption != PreemptionMode::kSwap || options.host_blocks > 0,
          "--preemption swap: needs room on the host, give --host-blocks");
  require(!options.canary || !options.memory_only,
          "--canary: watches what is stored, and --memory-only stores nothing");
  const std::int64_t scale = options.workload.scale;
  const std::int64_t block_tokens = options.workload.block_tokens;
  require(
      scale == 1 || (block_tokens % scale == 0 && block_tokens / scale >= replay::kMinBlockTokens),
      "--scale ", scale, ": must divide the ", block_tokens,
      " tokens of one hash id (--trace-block) and leave at least ", replay::kMinBlockTokens);
}

}  // namespace

void ReplayCommand::complete() {
  const auto or_else = [](auto& value, auto other) {
    if (value == 0) value = other;
  };
  or_else(workload.scale, memory_only ? 1 : 64);
  or_else(num_layers, memory_only ? 32 : 2);
  or_else(num_q_heads, memory_only ? 32 : 4);
  or_else(num_kv_heads, memory_only ? 8 : 2);
  or_else(head_dim, memory_only ? 128 : 64);
  if (!has_dtype) dtype = memory_only ? DType::kBF16 : DType::kF32;
  require_consistent(*this);
  or_else(block_size, static_cast<int>(workload.block_tokens / workload.scale));
  require(block_size <= kMaxBlockSize, "--trace-block ", workload.block_tokens,
          ": makes blocks of ", block_size, " tokens, more than ", kMaxBlockSize,
          ": give --block-size");
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

std::int64_t ReplayCommand::plain_block_bytes() const {
  constexpr const char* kWhat =
      "--layers, --kv-heads, --head-dim, --block-size: the number of bytes of one block";
  std::int64_t bytes = 2 * std::int64_t{dtype_bytes(dtype)};
  for (const int factor : {num_layers, num_kv_heads, head_dim, block_size}) {
    bytes = checked_mul(kWhat, bytes, factor);
  }
  // A stored block may be padded.
  require(bytes <= kMaxBlockBytes, kWhat, " must be at most ", kMaxBlockBytes, ", is ", bytes);
  return bytes;
}

void add_replay_options(CLI::App& command, ReplayCommand& options) {
  add_files(command, options);
  add_workload(command, options);
  add_cache(command, options);
  add_scheduler(command, options);
  add_model(command, options);
  add_checks_and_clock(command, options);
}

}  // namespace quire::cli
