// SPDX-License-Identifier: Apache-2.0
#include "benchmark/host_instrument.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "benchmark/ceilings.h"
#include "benchmark/loaded_case.h"
#include "benchmark/runner.h"
#include "benchmark/statistics.h"
#include "registry/dense_stages.h"

namespace quire::benchmark {
namespace {

using conformance::CacheStyle;

// Of the memory that is free, what the probes may take.
constexpr double kProbeShare = 0.3;

std::int64_t bytes_of_caches(const Machine& machine, const RunOptions& options) {
  return options.cache_multiple * machine.last_level_cache_bytes;
}

class HostMeasurement final : public Measurement {
 public:
  HostMeasurement(const CaseOnCandidate& c, Ceilings& ceilings)
      : shared_(c.shared),
        candidate_(c.candidate),
        ceilings_(ceilings),
        loaded_(*c.candidate.instance, *c.shared.description, c.shared.outline,
                c.shared.arrangement, c.spec, c.cache, {}) {}

  // False, with a reason, where the output is nonsense.
  bool warm_up(double min_sample_seconds, Result& result) {
    const Operation operation = shared_.description->operation;
    // The first call touches pages and wakes threads; only a short one is worth a second.
    constexpr double kLongSeconds = 0.1;
    double call_seconds = seconds_of([&] { loaded_.call(); });
    result.first_seconds = loaded_.first_prepare_seconds() + call_seconds;
    if (call_seconds < kLongSeconds) call_seconds = seconds_of([&] { loaded_.call(); });
    if (operation != Operation::kAppend && !loaded_.output_is_finite()) {
      result.reason = "the output is not finite";
      return false;
    }
    const double calls = std::ceil(min_sample_seconds / std::max(call_seconds, 1e-9));
    calls_per_sample_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(calls), 1, 1000);
    if (operation == Operation::kAttend || operation == Operation::kStep) {
      std::vector<double> setups;
      for (int i = 0; i < 5; ++i) setups.push_back(seconds_of([&] { loaded_.prepare(); }));
      result.setup_seconds = median(setups);
      time_gather(result);
    }
    choose_ceiling(result);
    return true;
  }

  // The probe, the candidate, the probe. Memory has slow phases that both feel: its ceiling is the
  // mean of the two. Registers have none, only moments in which somebody else had the core.
  Sample sample() override {
    const double before = roof_seconds(probe());
    // The probe's threads are still about to sleep and the candidate's asleep, and some wake theirs
    // only when calls follow each other: nothing beside a long call, much beside a short one.
    constexpr std::int64_t kWarmUps = 16;
    for (std::int64_t i = 0; i < std::min(calls_per_sample_ - 1, kWarmUps); ++i) loaded_.call();
    const double seconds = seconds_of([&] {
      for (std::int64_t i = 0; i < calls_per_sample_; ++i) loaded_.call();
    });
    const double after = roof_seconds(probe());
    return {
        .seconds = seconds / static_cast<double>(calls_per_sample_),
        .roof_seconds = bound_ == Bound::kPeak ? std::min(before, after) : (before + after) / 2};
  }

 private:
  // Calls of their own: a clock within calls would be a part of short ones.
  void time_gather(Result& result) {
    auto* const clock = dynamic_cast<GatherClock*>(candidate_.instance.get());
    if (clock == nullptr) return;
    constexpr int kMaxCalls = 5;
    constexpr double kEnoughSeconds = 0.5;
    std::vector<double> times;
    double spent = 0;
    while (times.size() < kMaxCalls && spent < kEnoughSeconds) {
      clock->time_gather(true);
      spent += seconds_of([&] { loaded_.call(); });
      clock->time_gather(false);
      times.push_back(clock->gather_seconds());
    }
    result.gather_seconds = median(times);
    result.gather_in_seconds = true;
  }

  // Which ceiling bounds the case: the probe of its rounds.
  void choose_ceiling(Result& result) {
    const BenchCase& c = *shared_.description;
    if (c.c.cache == CacheStyle::kSeparate) piece_bytes_ = piece_bytes(c.c.spec);
    if (shared_.work.moved_bytes > 0) {
      rates_.copy = ceilings_.typical_copy();
    } else {
      rates_.read = ceilings_.typical_read(piece_bytes_);
    }
    for (const PeakKind kind :
         peaks_of_level(candidate_.isa, c.c.spec.q_dtype, ceilings_.peaks())) {
      const double rate = ceilings_.typical_peak(kind);
      if (rate <= rates_.peak) continue;
      rates_.peak = rate;
      peak_ = kind;
    }
    bound_ = roof_of(shared_.work, rates_, c.hot).bound;
    result.ceiling = bound_ == Bound::kCopy   ? "memcpy"
                     : bound_ == Bound::kPeak ? peak_name(peak_)
                     : piece_bytes_ > 0       ? concat("read ", piece_bytes_)
                                              : "read";
  }

  // One run of the probe that bounds the case.
  double probe() {
    switch (bound_) {
      case Bound::kRead:
        return ceilings_.read(piece_bytes_);
      case Bound::kPeak:
        return ceilings_.peak(peak_);
      case Bound::kCopy:
        break;
    }
    return ceilings_.copy();
  }

  double roof_seconds(double rate) const {
    Rates rates = rates_;
    bounding_rate(rates, bound_) = rate;
    return roof_of(shared_.work, rates, shared_.description->hot).seconds;
  }

  const SharedCase& shared_;
  const Candidate& candidate_;
  Ceilings& ceilings_;
  LoadedCase loaded_;
  Bound bound_ = Bound::kRead;
  PeakKind peak_ = PeakKind::kPortable;
  std::int64_t piece_bytes_ = 0;
  Rates rates_;  // as they were before the rounds
  std::int64_t calls_per_sample_ = 1;
};

class HostInstrument final : public Instrument {
 public:
  HostInstrument(const Machine& machine, const ProbeBuffer& buffer, int num_threads,
                 const RunOptions& options)
      : machine_(machine),
        options_(options),
        ceilings_(buffer, available_peaks(machine.cpu),
                  {.num_threads = num_threads,
                   .run_bytes = options.probe_bytes,
                   .peak_seconds = options.probe_seconds}) {
    static_cast<void>(ceilings_.typical_read());
    for (const PeakKind kind : ceilings_.peaks()) static_cast<void>(ceilings_.typical_peak(kind));
  }

  std::int64_t cold_bytes() const override { return bytes_of_caches(machine_, options_); }
  std::int64_t free_bytes(const Candidate&) override { return available_memory_bytes(); }

  std::unique_ptr<Measurement> load(const CaseOnCandidate& c, Result& result) override {
    auto measurement = std::make_unique<HostMeasurement>(c, ceilings_);
    if (!measurement->warm_up(options_.min_sample_seconds, result)) return nullptr;
    return measurement;
  }

  CeilingValues ceilings() override {
    CeilingValues values;
    values.threads = ceilings_.num_threads();
    values.read_bytes_per_second = ceilings_.typical_read();
    values.copy_bytes_per_second = ceilings_.typical_copy();
    for (const PeakKind kind : ceilings_.peaks()) {
      values.flops_per_second.emplace_back(peak_name(kind), ceilings_.typical_peak(kind));
    }
    for (const std::int64_t size : ceilings_.piece_sizes()) {
      values.piece_read_bytes_per_second.emplace_back(size, ceilings_.typical_read(size));
    }
    return values;
  }

 private:
  const Machine& machine_;
  const RunOptions& options_;
  Ceilings ceilings_;
};

}  // namespace

std::unique_ptr<ProbeBuffer> make_probe_buffer(const Machine& machine, const RunOptions& options,
                                               std::vector<std::string>& notes) {
  std::int64_t bytes = std::max(bytes_of_caches(machine, options), options.probe_bytes);
  const auto limit =
      static_cast<std::int64_t>(kProbeShare * static_cast<double>(available_memory_bytes()));
  if (bytes > limit) {
    notes.push_back(concat("memory is short: the probes read ", limit >> 20, " MiB in turn, not ",
                           bytes >> 20));
    bytes = std::max<std::int64_t>(limit, 16 << 20);
  }
  constexpr std::int64_t kHugePage = 2 << 20;
  return std::make_unique<ProbeBuffer>((bytes + kHugePage - 1) / kHugePage * kHugePage);
}

std::unique_ptr<Instrument> make_host_instrument(const Machine& machine, const ProbeBuffer& buffer,
                                                 int num_threads, const RunOptions& options) {
  return std::make_unique<HostInstrument>(machine, buffer, num_threads, options);
}

}  // namespace quire::benchmark
