// SPDX-License-Identifier: Apache-2.0
#include "replay/chrome_trace.h"

#include <fmt/format.h>

namespace quire::replay {
namespace {

constexpr int kSteps = 1;  // thread of the steps
constexpr double kMicroseconds = 1e6;

}  // namespace

ChromeTraceWriter::ChromeTraceWriter(std::ostream& out, std::int64_t max_steps)
    : out_(out), max_steps_(max_steps) {
  out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  begin_event();
  out_ << R"({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "quire replay"}})";
  begin_event();
  out_ << R"({"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "steps"}})";
}

void ChromeTraceWriter::begin_event() {
  out_ << (has_events_ ? ",\n" : "\n");
  has_events_ = true;
}

void ChromeTraceWriter::on_step(const StepRecord& step) {
  if (++num_steps_ > max_steps_) return;
  const char* const kind = step.prefill_tokens == 0  ? "decode"
                           : step.decode_tokens == 0 ? "prefill"
                                                     : "mixed";
  const double begin_us = step.begin_s * kMicroseconds;
  begin_event();
  out_ << fmt::format(
      R"({{"ph": "X", "pid": 1, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "name": "{}", )"
      R"("args": {{"step": {}, "prefill_tokens": {}, "decode_tokens": {}, "sequences": {}}}}})",
      kSteps, begin_us, step.duration_s * kMicroseconds, kind, step.index, step.prefill_tokens,
      step.decode_tokens, step.num_sequences);
  if (!step.has_levels) return;
  const double end_us = begin_us + step.duration_s * kMicroseconds;
  begin_event();
  out_ << fmt::format(R"({{"ph": "C", "pid": 1, "ts": {:.3f}, "name": "requests", )"
                      R"("args": {{"running": {}, "waiting": {}}}}})",
                      end_us, step.num_running, step.num_waiting);
  begin_event();
  out_ << fmt::format(R"({{"ph": "C", "pid": 1, "ts": {:.3f}, "name": "blocks, %", )"
                      R"("args": {{"held": {:.2f}, "kept for reuse": {:.2f}}}}})",
                      end_us, 100 * step.in_use, 100 * step.evictable);
}

void ChromeTraceWriter::phase(const RequestRecord& request, const char* name, double begin_s,
                              double end_s) {
  begin_event();
  out_ << fmt::format(
      R"({{"ph": "b", "pid": 1, "tid": 2, "cat": "request", "id": {}, "ts": {:.3f}, )"
      R"("name": "{}", "args": {{"input_length": {}, "output_length": {}, "cached_tokens": {}}}}})",
      request.index + 1, begin_s * kMicroseconds, name, request.input_length, request.output_length,
      request.cached_tokens);
  begin_event();
  out_ << fmt::format(
      R"({{"ph": "e", "pid": 1, "tid": 2, "cat": "request", "id": {}, "ts": {:.3f}, )"
      R"("name": "{}"}})",
      request.index + 1, end_s * kMicroseconds, name);
}

void ChromeTraceWriter::on_request(const RequestRecord& request) {
  if (is_truncated()) return;
  phase(request, "queue", request.arrival_s, request.start_s);
  phase(request, "prefill", request.start_s, request.first_token_s);
  if (request.end_s > request.first_token_s) {
    phase(request, "decode", request.first_token_s, request.end_s);
  }
}

void ChromeTraceWriter::finish() {
  out_ << "\n]}\n";
}

}  // namespace quire::replay
