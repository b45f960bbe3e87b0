// SPDX-License-Identifier: Apache-2.0
// `quire replay`: a request trace through scheduler, block manager and, if wanted, attention.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked_int.h"
#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/replay_options.h"
#include "cli/replay_report.h"
#include "cli/text.h"
#include "quire/registry.h"
#include "replay/cache_plan.h"
#include "replay/chrome_trace.h"
#include "replay/compute_runner.h"
#include "replay/html_report.h"
#include "replay/replay.h"
#include "replay/step_runner.h"
#include "replay/svg_chart.h"
#include "replay/trace_reader.h"
#include "replay/workload.h"

namespace quire::cli {
namespace {

using replay::CachePlan;
using replay::ReplayReport;
using replay::Workload;

constexpr std::int64_t kDefaultCacheBytes = std::int64_t{256} << 20;

// Without evictions; but not more memory than asked for where it is real.
std::int64_t default_blocks(const ReplayCommand& options, const Workload& workload,
                            std::int64_t block_bytes) {
  const std::int64_t watermark = std::max<std::int64_t>(options.watermark_blocks, 0);
  std::int64_t num_blocks = replay::blocks_for_all(workload, options.block_size) + watermark;
  if (!options.memory_only) {
    const std::int64_t largest = replay::largest_request(workload, options.block_size).num_blocks;
    const std::int64_t usual = replay::blocks_in(kDefaultCacheBytes, block_bytes);
    num_blocks = std::min(num_blocks, std::max(usual, largest + watermark));
  }
  return std::min(num_blocks, replay::kMaxCacheBlocks);
}

CachePlan plan_cache(const ReplayCommand& options, const Workload& workload,
                     std::int64_t block_bytes) {
  CachePlan plan{.block_size = options.block_size,
                 .block_bytes = block_bytes,
                 .num_blocks = options.cache_blocks,
                 .num_host_blocks = options.host_blocks,
                 .watermark_blocks = std::max<std::int64_t>(options.watermark_blocks, 0),
                 .share_tails = options.share_tails};
  const bool is_given = options.cache_blocks > 0 || options.cache_bytes > 0;
  if (options.cache_bytes > 0) {
    plan.num_blocks = replay::blocks_in(options.cache_bytes, block_bytes);
    require(plan.num_blocks <= replay::kMaxCacheBlocks, "--cache-bytes ", options.cache_bytes,
            ": has ", plan.num_blocks, " blocks, more than the ", replay::kMaxCacheBlocks,
            " that can be numbered: give a larger --block-size");
  } else if (!is_given) {
    plan.num_blocks = default_blocks(options, workload, block_bytes);
  }
  if (is_given && options.watermark_blocks < 0) {
    plan.watermark_blocks = plan.num_blocks / 100;
    plan.watermark_is_percent = true;
  }
  if (!options.skip_too_large) require_all_fit(workload, plan);
  static_cast<void>(checked_mul(
      "--cache-blocks, --block-size, --layers, --kv-heads, --head-dim: the number of bytes of the "
      "cache",
      plan.num_blocks + 1, block_bytes));
  return plan;
}

// Reports must not take the place of each other or of the trace.
void require_distinct_files(const ReplayCommand& options) {
  const auto is_same = [](const std::string& a, const std::string& b) {
    std::error_code ignored;
    return !a.empty() && !b.empty() && (a == b || std::filesystem::equivalent(a, b, ignored));
  };
  const auto require_not = [](bool is_wrong, const char* what, const std::string& file) {
    if (is_wrong) throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, file));
  };
  require_not(is_same(options.html, options.chrome_trace), "--html and --chrome-trace are one file",
              options.html);
  require_not(is_same(options.html, options.trace), "--html would take the place of the trace",
              options.html);
  require_not(is_same(options.chrome_trace, options.trace),
              "--chrome-trace would take the place of the trace", options.chrome_trace);
}

// Checking the whole state takes about as long as walking all blocks.
std::int64_t default_validate_interval(const CachePlan& plan) {
  return std::max<std::int64_t>(plan.num_blocks / 8, 64);
}

// What is given to compute with, and the cache that fits it.
struct Machine {
  CachePlan plan;
  std::unique_ptr<replay::StepRunner> runner;
};

Machine make_memory_machine(ReplayCommand& options, const Workload& workload, KvEventSink* events) {
  const CachePlan plan = plan_cache(options, workload, options.plain_block_bytes());
  options.replay.sample_interval = 16;
  options.scheduler.preemption.token_bytes = plan.block_bytes / plan.block_size;
  BlockManagerOptions blocks = manager_options(plan);
  blocks.events = events;
  return {plan, std::make_unique<replay::MemoryRunner>(options.scheduler, blocks)};
}

Machine make_computing_machine(ReplayCommand& options, const Workload& workload,
                               KvEventSink* events) {
  static_cast<void>(options.plain_block_bytes());  // or the flags are named
  const replay::ModelShape model{.num_layers = options.num_layers,
                                 .num_q_heads = options.num_q_heads,
                                 .num_kv_heads = options.num_kv_heads,
                                 .head_dim = options.head_dim,
                                 .dtype = options.dtype};
  const BackendOptions backend_options{.num_threads = options.num_threads, .isa = {}};
  std::unique_ptr<AttentionBackend> backend = make_backend(options.backend, backend_options);
  const std::int64_t block_bytes = replay::stored_block_bytes(*backend, model, options.block_size);
  const CachePlan plan = plan_cache(options, workload, block_bytes);
  replay::ComputeOptions compute{.model = model,
                                 .scheduler = options.scheduler,
                                 .blocks = manager_options(plan),
                                 .verified_rows = options.verified_rows,
                                 .seed = options.workload.seed,
                                 .canary = options.canary};
  compute.scheduler.max_length = workload.max_length();
  compute.blocks.events = events;
  return {plan, std::make_unique<replay::ComputeRunner>(std::move(backend), compute)};
}

// By tokens, so that it moves within a long request too.
class ReplayBar {
 public:
  void update(const replay::ReplayProgress& state) {
    if (!progress_) progress_.emplace(state.total_tokens, Progress::Unit::kPercent);
    if (!progress_->is_due()) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double rate = static_cast<double>(state.num_tokens) / std::max(seconds, 1e-3);
    progress_->update(
        state.num_tokens,
        fmt::format("{} of {}, {} tokens/s", grouped(state.num_done),
                    counted(state.num_requests, "request"), replay::short_number(rate)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::optional<Progress> progress_;
};

[[noreturn]] void fail_without_memory(const std::string& what) {
  throw std::runtime_error(fmt::format(
      "out of memory{}: give less to --cache-blocks, --cache-bytes, --host-blocks, --max-sequences "
      "or --token-budget",
      what));
}

// What asks for most of the memory is made here.
Machine make_machine(ReplayCommand& options, const Workload& workload) {
  try {
    KvEventSink* events = options.replay.lifetimes;
    return options.memory_only ? make_memory_machine(options, workload, events)
                               : make_computing_machine(options, workload, events);
  } catch (const std::bad_alloc&) {
    fail_without_memory("");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    fail_without_memory(fmt::format(" ({})", error.what()));
  }
}

int run_replay(ReplayCommand options) {
  options.complete();
  require_distinct_files(options);
  replay::Trace trace = replay::read_trace(
      options.trace,
      {.block_tokens = options.workload.block_tokens, .max_requests = options.max_requests});
  const Workload workload(std::move(trace), options.workload);
  replay::BlockLifetimes lifetimes;
  if (!options.html.empty()) options.replay.lifetimes = &lifetimes;
  const Machine machine = make_machine(options, workload);
  if (options.replay.validate_interval < 0) {
    options.replay.validate_interval = default_validate_interval(machine.plan);
  }
  std::optional<OutputFile> html;
  if (!options.html.empty()) html.emplace(options.html);
  std::optional<OutputFile> chrome;
  std::optional<replay::ChromeTraceWriter> events;
  if (!options.chrome_trace.empty()) {
    chrome.emplace(options.chrome_trace);
    options.replay.observer = &events.emplace(chrome->stream());
  }
  ReplayReport report;
  try {
    ReplayBar bar;
    options.replay.progress = [&](const replay::ReplayProgress& state) { bar.update(state); };
    report = replay::replay(workload, *machine.runner, options.replay);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) throw;
    fmt::print(stderr, "quire replay: violation that ends the replay: {}\n", error.what());
    return kFailure;
  }
  if (html) {
    html->stream() << replay::html_report(report, html_context(options, machine.plan));
    html->commit();
    fmt::print(stderr, "quire replay: the report is {}\n", options.html);
  }
  if (chrome) {
    events->finish();
    chrome->commit();
    if (events->is_truncated()) {
      fmt::print(stderr, "quire replay: {} holds only the first steps\n", options.chrome_trace);
    }
  }
  if (options.json) {
    using Handler = nlohmann::ordered_json::error_handler_t;
    fmt::print("{}\n",
               report_json(options, machine.plan, report).dump(2, ' ', false, Handler::replace));
  } else {
    print_report(options, machine.plan, report);
  }
  const bool is_refused = report.num_refused > 0 && !options.skip_too_large;
  return report.violations == 0 && !is_refused ? kSuccess : kFailure;
}

}  // namespace

void add_replay(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "replay", "Replay a request trace through scheduler, blocks and attention");
  auto options = std::make_shared<ReplayCommand>();
  add_replay_options(*command, *options);
  command->footer(
      "Exit code 0: no violation; 1: some; 2: bad usage, a bad trace, a cache too small for it,\n"
      "output that cannot be written, or not enough memory.\n"
      "Examples:\n"
      "  quire replay trace.jsonl\n"
      "  quire replay trace.jsonl --cache-bytes 64MiB --html report.html\n"
      "  quire replay trace.jsonl --memory-only --cache-bytes 80GiB --json\n"
      "  quire replay trace.jsonl --memory-only --serial");
  command->callback([&action, options] { action = [options] { return run_replay(*options); }; });
}

}  // namespace quire::cli
