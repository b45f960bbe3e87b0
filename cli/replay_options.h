// SPDX-License-Identifier: Apache-2.0
// The options of `quire replay`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "quire/dtype.h"
#include "quire/scheduler.h"
#include "replay/replay.h"
#include "replay/workload.h"

namespace quire::cli {

// Of one block in all layers: beyond that no cache makes sense.
inline constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 40;

enum class Policy : std::uint8_t { kRank, kPrefix };
enum class PreemptionMode : std::uint8_t { kAuto, kRecompute, kPartial, kSwap };

// Zero: the default of the mode, see complete().
struct ReplayCommand {
  std::string trace;
  bool memory_only = false;
  replay::WorkloadOptions workload{.scale = 0};
  std::int64_t max_requests = 0;
  replay::ReplayOptions replay{.validate_interval = -1};

  int block_size = 0;
  std::int64_t cache_blocks = 0;
  std::int64_t cache_bytes = 0;
  std::int64_t host_blocks = 0;
  std::int64_t watermark_blocks = -1;
  bool share_tails = false;
  bool skip_too_large = false;

  SchedulerOptions scheduler;
  Policy policy = Policy::kRank;
  PreemptionMode preemption = PreemptionMode::kAuto;

  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kBF16;
  bool has_dtype = false;
  std::string backend;
  int num_threads = 0;
  std::int64_t verified_rows = 4;
  bool canary = false;

  bool json = false;
  std::string html;
  std::string chrome_trace;

  // Fills in what the line has left open. Throws Error(kInvalidArgument) naming flags that do not
  // go together.
  void complete();
  // Of one block in all layers, as K and V need them; throws naming the flags that make it absurd.
  std::int64_t plain_block_bytes() const;
};

void add_replay_options(CLI::App& command, ReplayCommand& options);

}  // namespace quire::cli
