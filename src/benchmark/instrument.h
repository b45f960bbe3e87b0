// SPDX-License-Identifier: Apache-2.0
// How a kind of candidate is measured: what stands around the rounds of the runner. Backends of the
// host are called and timed by the host's clock against probes of its memory and processors
// (host_instrument.cc); those of a device run recorded work, timed by the device against probes of
// the device (device_instrument.cc).
//
// One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/bench_case.h"
#include "benchmark/candidate.h"
#include "benchmark/result.h"
#include "benchmark/roof.h"
#include "benchmark/rotating_cache.h"
#include "conformance/arrangement.h"
#include "conformance/problem.h"

namespace quire::benchmark {

struct RunOptions;

// What all candidates of a case share.
struct SharedCase {
  const BenchCase* description = nullptr;
  conformance::Problem outline;
  conformance::Arrangement arrangement;
  Work work;
  std::vector<std::unique_ptr<RotatingCache>> caches;  // one for each layout
  std::string notes;
};

// A case with the memory that a candidate works on. All must outlive what is loaded from it.
struct CaseOnCandidate {
  const SharedCase& shared;
  const Candidate& candidate;
  const AttentionSpec& spec;  // with the layout of the cache
  RotatingCache& cache;
};

// One call of the candidate, and how long its ceiling would have taken in the same moment.
struct Sample {
  double seconds = 0;
  double roof_seconds = 0;
};

class Measurement {
 public:
  virtual ~Measurement() = default;
  virtual Sample sample() = 0;
  // What the samples said beside their times.
  virtual void finish(Result&) const {}
};

class Instrument {
 public:
  virtual ~Instrument() = default;

  // What buffers must cover in turn to be cold, and what may still be allocated for them.
  virtual std::int64_t cold_bytes() const = 0;
  virtual std::int64_t free_bytes(const Candidate& candidate) = 0;
  // After so many seconds of samples a few are enough.
  virtual double patience_seconds() const { return std::numeric_limits<double>::infinity(); }

  // Loads the case, warms it up and says in the result what needs no rounds; null, with a reason,
  // where it cannot be measured. Throws what the backend throws.
  virtual std::unique_ptr<Measurement> load(const CaseOnCandidate& c, Result& result) = 0;

  // The medians of all runs of the probes.
  virtual CeilingValues ceilings() = 0;
};

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The rate that a bound is about.
inline double& bounding_rate(Rates& rates, Bound bound) noexcept {
  if (bound == Bound::kPeak) return rates.peak;
  return bound == Bound::kRead ? rates.read : rates.copy;
}

}  // namespace quire::benchmark
