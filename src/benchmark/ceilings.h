// SPDX-License-Identifier: Apache-2.0
// The ceilings of a machine for one number of threads, measured again whenever they are asked for:
// a candidate and its ceiling are to be run back to back.
//
// Not thread-safe: one caller at a time, on pools of its own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "benchmark/memory_probe.h"
#include "benchmark/peak_probe.h"

namespace quire::benchmark {

class Ceilings {
 public:
  struct Options {
    int num_threads = 1;
    std::int64_t run_bytes = 128 << 20;  // of one run of a memory probe
    double peak_seconds = 0.004;         // of one run of a peak probe
  };

  // The buffer must outlive it.
  Ceilings(const ProbeBuffer& buffer, const std::vector<PeakKind>& peaks, const Options& options);

  // One run each. `piece_bytes` 0: in order.
  double read(std::int64_t piece_bytes);
  double copy();
  double peak(PeakKind kind);

  int num_threads() const noexcept { return pool_.num_threads(); }
  const std::vector<PeakKind>& peaks() const noexcept { return peaks_; }

  // The medians of all runs so far; measures where there was none.
  double typical_read(std::int64_t piece_bytes = 0);
  double typical_copy();
  double typical_peak(PeakKind kind);
  std::vector<std::int64_t> piece_sizes() const;  // that were measured, ascending, without 0
  std::int64_t prefetch_bytes(std::int64_t piece_bytes) const;

 private:
  struct Reads {
    std::unique_ptr<ReadProbe> probe;
    std::vector<double> rates;
  };
  Reads& reads(std::int64_t piece_bytes);

  const ProbeBuffer& buffer_;
  std::vector<PeakKind> peaks_;
  Options options_;
  ThreadPool pool_;
  std::map<std::int64_t, Reads> reads_;  // by piece size
  std::unique_ptr<CopyProbe> copy_probe_;
  std::vector<double> copy_rates_;
  std::array<std::vector<double>, kNumPeakKinds> peak_rates_;
};

}  // namespace quire::benchmark
