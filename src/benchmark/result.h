// SPDX-License-Identifier: Apache-2.0
// What a run found out. Plain values; JSON, tables, pages and comparisons are made from them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/machine.h"

namespace quire::benchmark {

// One case on one candidate.
struct Result {
  std::string suite;
  std::string name;  // of the case
  std::string backend;
  std::string isa;
  int threads = 0;
  int block_size = 0;
  std::string kv_dtype;
  std::string layout;  // "preferred", "plain" or "caller"
  bool hot = false;    // the same memory every time
  std::string reason;  // why it was not measured; then nothing below holds
  std::string notes;

  int rounds = 0;
  double seconds = 0;  // best
  double median_seconds = 0;
  double setup_seconds = 0;  // of prepare, shared by all layers of a step; part of a `step` case
  double first_seconds = 0;  // of the first prepare and call, with all that is made only once
  double bytes = 0;          // of one call, see Work
  double flops = 0;
  double bytes_per_second = 0;  // at the best time
  double flops_per_second = 0;
  std::string ceiling;           // "read", "read 32768", "memcpy" or the name of a peak
  double share_of_ceiling = 0;   // median over rounds of roof time / time, both of one round
  double spread = 0;             // of that share: half the distance of its quartiles, relative
  double ratio_to_first = 1;     // time over that of the first candidate: median of the rounds
  std::string baseline;          // another case, or empty
  double ratio_to_baseline = 0;  // time over that of the baseline on the same candidate

  bool measured() const noexcept { return reason.empty(); }
  std::string candidate() const { return isa.empty() ? backend : backend + ":" + isa; }
};

// The medians of all runs of the probes on one number of threads.
struct CeilingValues {
  int threads = 0;
  double read_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
  std::vector<std::pair<std::string, double>> flops_per_second;              // by name of the peak
  std::vector<std::pair<std::int64_t, double>> piece_read_bytes_per_second;  // by piece size
};

struct Report {
  Machine machine;
  std::vector<CeilingValues> ceilings;  // most threads first
  std::vector<Result> results;
  std::vector<std::string> notes;
};

}  // namespace quire::benchmark
