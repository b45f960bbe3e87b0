// SPDX-License-Identifier: Apache-2.0
// A replay in the trace event format that Perfetto and chrome://tracing open: steps as slices,
// levels as counters, and a bar for every request with its phases. Times are those of the trace.
//
// Events are written as they come: memory does not grow with the replay.
#pragma once

#include <cstdint>
#include <ostream>

#include "replay/replay.h"

namespace quire::replay {

class ChromeTraceWriter final : public ReplayObserver {
 public:
  // `out` must outlive it. Steps beyond max_steps are left out; is_truncated() tells.
  explicit ChromeTraceWriter(std::ostream& out, std::int64_t max_steps = 500'000);

  void on_step(const StepRecord& step) override;
  void on_request(const RequestRecord& request) override;
  // The end of the document. REQUIRES: called once, last.
  void finish();

  bool is_truncated() const noexcept { return num_steps_ > max_steps_; }

 private:
  void begin_event();
  void phase(const RequestRecord& request, const char* name, double begin_s, double end_s);

  std::ostream& out_;
  std::int64_t max_steps_;
  std::int64_t num_steps_ = 0;
  bool has_events_ = false;
};

}  // namespace quire::replay
