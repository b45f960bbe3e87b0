// SPDX-License-Identifier: Apache-2.0
// Replays a workload through a StepRunner and reports what came of it.
//
// Two clocks. The trace clock says when requests come: a step lasts what StepCost gives, so that
// the same options make the same steps on every machine. The seconds of the report are those of the
// trace clock where nothing is computed, and the measured ones of the steps where it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/block_stats.h"
#include "quire/scheduler.h"
#include "replay/block_lifetimes.h"
#include "replay/step_runner.h"
#include "replay/time_series.h"
#include "replay/trace_statistics.h"
#include "replay/workload.h"

namespace quire::replay {

// step_s + token_s * tokens + key_s * pairs of a token and a key it sees. The defaults are an 8B
// model in bf16 (16 GFLOP per token, 16 GB of weights read per step at 3.3 TB/s) on four
// accelerators of 400 TFLOP/s each: arithmetic, not measurement.
struct StepCost {
  double step_s = 5e-3;
  double token_s = 10e-6;
  double key_s = 0.33e-9;
};

// One step, on the trace clock.
struct StepRecord {
  std::int64_t index = 0;
  double begin_s = 0;
  double duration_s = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t num_sequences = 0;
  bool has_levels = false;  // the following, as they are after it; else those of an earlier step
  std::int64_t num_running = 0;
  std::int64_t num_waiting = 0;
  double in_use = 0;     // share of the blocks that sequences hold
  double evictable = 0;  // share that only the prefix cache holds
};

// A request that has ended, on the trace clock.
struct RequestRecord {
  std::int64_t index = 0;
  double arrival_s = 0;
  double start_s = 0;        // of the first step that computed some of it
  double first_token_s = 0;  // of the end of the step that gave it
  double end_s = 0;
  std::int64_t input_length = 0;
  std::int64_t output_length = 0;
  std::int64_t cached_tokens = 0;
};

class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  virtual void on_step(const StepRecord& step) = 0;
  virtual void on_request(const RequestRecord& request) = 0;
};

// Tokens are those of prompts and answers, found or computed, each once: they rise in every step
// that goes on with a request, and end at their total.
struct ReplayProgress {
  std::int64_t num_done = 0;  // requests
  std::int64_t num_requests = 0;
  std::int64_t num_tokens = 0;
  std::int64_t total_tokens = 0;
};

struct ReplayOptions {
  bool serial = false;  // a request is submitted when the one before has ended
  StepCost cost{};
  std::int64_t validate_interval = 0;   // steps between two checks of the whole state; 0: never
  std::int64_t sample_interval = 1;     // steps between two looks at queue and occupancy
  BlockLifetimes* lifetimes = nullptr;  // the sink of the block manager, if it has one
  ReplayObserver* observer = nullptr;
  std::function<void(const ReplayProgress&)> progress{};  // called after every step
};

// A request that the scheduler would not run, and why.
struct RefusedRequest {
  std::int64_t index = 0;
  std::int64_t input_length = 0;
  std::int64_t output_length = 0;
  std::string reason{};
};
std::string to_string(const RefusedRequest& request);

struct ReplayReport {
  std::int64_t num_requests = 0;
  std::int64_t num_steps = 0;
  double wall_seconds = 0;       // of the replay, all included
  double computing_seconds = 0;  // of these in the backend; 0: nothing was computed
  double trace_seconds = 0;      // that the trace clock has come to
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t computed_tokens = 0;  // in steps, those computed again included
  std::int64_t full_blocks = 0;      // of prompts
  std::int64_t hit_blocks = 0;       // when a request began for the first time
  std::int64_t ideal_hit_blocks = 0;
  std::int64_t violations = 0;  // failed validations and rows that differ
  std::vector<std::string> messages{};
  std::int64_t num_refused = 0;
  std::vector<RefusedRequest> refused{};  // the first of them
  Verification verification{};

  Summary ttft_s, ttft_steps;    // from arrival to the first token
  Summary token_s, token_steps;  // between two tokens of a request, its mean
  Summary queue_s, queue_steps;  // from arrival to the first step that computes some of it
  Summary total_s;               // from arrival to the end
  Summary running, waiting;      // requests, as looked at
  Summary in_use;                // share of the blocks held by sequences, as looked at

  LogHistogram ttft_histogram, token_histogram, queue_histogram, total_histogram;  // seconds
  LogHistogram evicted_histogram, alive_histogram;  // seconds that contents live
  TimeSeries series{};                              // on the trace clock
  BlockStats blocks{};
  SchedulerStats scheduler{};
};

// Requests that can never fit are refused, and the others go on.
ReplayReport replay(const Workload& workload, StepRunner& runner, const ReplayOptions& options);

}  // namespace quire::replay
