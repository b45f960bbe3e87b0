// SPDX-License-Identifier: Apache-2.0
// Measures cases on candidates.
//
// A round runs every candidate once (short calls: several times) and, right before and after each,
// the probe of the ceiling that bounds it, on as many threads or on the same device. Machines have
// slow phases of seconds; a ratio of neighbours does not see them. A case and its baseline share
// their rounds.
//
// Not thread-safe; nothing else should run on the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "benchmark/bench_case.h"
#include "benchmark/candidate.h"
#include "benchmark/result.h"

namespace quire::benchmark {

struct RunOptions {
  int num_rounds = 12;
  int cache_multiple = 4;                // buffers cover so many times the last-level cache
  std::int64_t probe_bytes = 128 << 20;  // read by one run of a memory probe
  double probe_seconds = 0.004;          // of one run of a peak probe
  double min_sample_seconds = 0.001;     // shorter calls are repeated
  // done and total in cases, and what runs now; may be empty.
  std::function<void(std::int64_t, std::int64_t, std::string_view)> progress;
};

// Throws what making caches and batches throws for a reason that no candidate can help; what a
// candidate refuses or throws is the reason in its result.
Report run_benchmarks(const std::vector<BenchCase>& cases, const std::vector<Candidate>& candidates,
                      const RunOptions& options);

}  // namespace quire::benchmark
