// SPDX-License-Identifier: Apache-2.0
#include "benchmark/runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>

#include "base/check.h"
#include "benchmark/ceilings.h"
#include "benchmark/loaded_case.h"
#include "benchmark/roof.h"
#include "benchmark/statistics.h"

namespace quire::benchmark {
namespace {

using Clock = std::chrono::steady_clock;
using conformance::CacheStyle;

// Of the memory that is free, what caches may take.
constexpr double kMemoryShare = 0.6;
// Of the CPUs, beyond which others disturb a run.
constexpr double kBusyShare = 0.3;

template <class F>
double seconds_of(F&& f) {
  const Clock::time_point start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What all candidates of a case share.
struct SharedCase {
  const BenchCase* description = nullptr;
  conformance::Problem outline;
  conformance::Arrangement arrangement;
  Work work;
  std::vector<std::unique_ptr<RotatingCache>> caches;  // one for each layout
  std::string notes;
};

// A case on a candidate.
struct Entry {
  SharedCase* shared = nullptr;
  const Candidate* candidate = nullptr;
  Ceilings* ceilings = nullptr;
  std::unique_ptr<LoadedCase> loaded;
  Bound bound = Bound::kRead;
  PeakKind peak = PeakKind::kPortable;
  std::int64_t piece_bytes = 0;
  Rates rates;  // as they were before the rounds
  std::int64_t calls_per_sample = 1;
  std::vector<double> seconds;       // [rounds]
  std::vector<double> roof_seconds;  // [rounds]
  Result result;
};

const char* layout_name(CacheStyle style) {
  if (style == CacheStyle::kPreferred) return "preferred";
  return style == CacheStyle::kSeparate ? "caller" : "plain";
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

class Runner {
 public:
  Runner(const std::vector<BenchCase>& cases, const std::vector<Candidate>& candidates,
         const RunOptions& options)
      : cases_(cases), candidates_(candidates), options_(options) {
    report_.machine = detect_machine();
    peaks_ = available_peaks(report_.machine.cpu);
    const Machine& machine = report_.machine;
    if (machine.load_average > kBusyShare * machine.cpu.num_cpus) {
      report_.notes.push_back(concat("the machine was busy: load ",
                                     std::round(machine.load_average), " on ", machine.cpu.num_cpus,
                                     " CPUs before the run; trust ratios at most"));
    }
    make_ceilings();
  }

  Report run() {
    // Cases that name the same baseline run with it.
    std::vector<bool> done(cases_.size(), false);
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (done[i]) continue;
      std::vector<const BenchCase*> unit;
      for (std::size_t j = i; j < cases_.size(); ++j) {
        if (j != i && (unit_of(cases_[j]) != unit_of(cases_[i]))) continue;
        done[j] = true;
        // The baseline first, whatever the order of the list.
        unit.insert(cases_[j].baseline.empty() ? unit.begin() : unit.end(), &cases_[j]);
      }
      run_unit(unit);
    }
    sort_results();
    add_ceilings();
    return std::move(report_);
  }

 private:
  static const std::string& unit_of(const BenchCase& c) {
    return c.baseline.empty() ? c.c.name : c.baseline;
  }

  std::int64_t wanted_bytes() const {
    return options_.cache_multiple * report_.machine.last_level_cache_bytes;
  }

  void make_ceilings() {
    std::int64_t bytes = std::max(wanted_bytes(), options_.probe_bytes);
    const auto limit =
        static_cast<std::int64_t>(kMemoryShare / 2 * static_cast<double>(available_memory_bytes()));
    if (bytes > limit) {
      report_.notes.push_back(concat("memory is short: the probes read ", limit >> 20,
                                     " MiB in turn, not ", bytes >> 20));
      bytes = std::max<std::int64_t>(limit, 16 << 20);
    }
    constexpr std::int64_t kHugePage = 2 << 20;
    buffer_ = std::make_unique<ProbeBuffer>((bytes + kHugePage - 1) / kHugePage * kHugePage);
    for (const Candidate& candidate : candidates_) {
      auto& ceilings = ceilings_[candidate.num_threads];
      if (ceilings != nullptr) continue;
      ceilings =
          std::make_unique<Ceilings>(*buffer_, peaks_,
                                     Ceilings::Options{.num_threads = candidate.num_threads,
                                                       .run_bytes = options_.probe_bytes,
                                                       .peak_seconds = options_.probe_seconds});
      static_cast<void>(ceilings->typical_read());
      for (const PeakKind kind : peaks_) static_cast<void>(ceilings->typical_peak(kind));
    }
  }

  void run_unit(const std::vector<const BenchCase*>& unit) {
    std::vector<std::unique_ptr<SharedCase>> shared;
    std::vector<std::unique_ptr<Entry>> entries;
    for (const BenchCase* c : unit) {
      tell(c->c.name);
      ++num_done_;
      shared.push_back(share(*c));
      for (const Candidate& candidate : candidates_) {
        entries.push_back(load(*shared.back(), candidate, unit.size()));
      }
    }
    std::vector<Entry*> running;
    for (const auto& entry : entries) {
      if (entry->result.measured()) running.push_back(entry.get());
    }
    for (int round = 0; round < options_.num_rounds; ++round) {
      for (std::size_t i = 0; i < running.size(); ++i) {
        // Another one begins every round, so that none profits from its neighbour for ever.
        sample(*running[(i + static_cast<std::size_t>(round)) % running.size()]);
      }
    }
    for (const auto& entry : entries) {
      finish(*entry, entries);
      report_.results.push_back(entry->result);
    }
  }

  void tell(std::string_view what) const {
    if (options_.progress) options_.progress(num_done_, std::ssize(cases_), what);
  }

  static std::unique_ptr<SharedCase> share(const BenchCase& c) {
    auto shared = std::make_unique<SharedCase>();
    shared->description = &c;
    shared->outline = bench_outline(c);
    shared->arrangement = arrange(shared->outline, options_of(shared->outline));
    shared->work = work_of(c, shared->outline);
    return shared;
  }

  // The rotating cache for a layout, made if there is none; null, with a reason, if it cannot be.
  RotatingCache* cache_for(SharedCase& shared, AttentionBackend& backend, const AttentionSpec& spec,
                           const KvLayout& layout, std::size_t num_cases) {
    for (const auto& cache : shared.caches) {
      if (cache->serves(backend, layout)) return cache.get();
    }
    const BenchCase& c = *shared.description;
    RotatingCache::Options options{.style = c.c.cache, .num_blocks = shared.arrangement.num_blocks};
    const std::int64_t layer_bytes = RotatingCache::layer_bytes(spec, layout, options);
    // New K and V of an append are as many as what is stored, and rotate with it.
    const std::int64_t call_bytes = std::max<std::int64_t>(1, shared.work.unique_bytes);
    const std::int64_t source_bytes = c.operation == Operation::kAppend ? shared.work.bytes : 0;
    const std::int64_t wanted =
        c.hot ? 1 : std::max<std::int64_t>(2, (wanted_bytes() + call_bytes - 1) / call_bytes);
    const double free = kMemoryShare * static_cast<double>(available_memory_bytes()) /
                        static_cast<double>(num_cases);
    const auto possible =
        static_cast<std::int64_t>(free / static_cast<double>(layer_bytes + source_bytes));
    if (possible < 1) return nullptr;
    options.num_layers = static_cast<int>(std::min(wanted, possible));
    if (possible < wanted) {
      shared.notes = concat("memory is short: rotates over ", possible * call_bytes >> 20,
                            " MiB, not ", wanted * call_bytes >> 20);
    }
    shared.caches.push_back(std::make_unique<RotatingCache>(backend, spec, layout, options));
    return shared.caches.back().get();
  }

  std::unique_ptr<Entry> load(SharedCase& shared, const Candidate& candidate,
                              std::size_t num_cases) {
    auto entry = std::make_unique<Entry>();
    const BenchCase& c = *shared.description;
    entry->shared = &shared;
    entry->candidate = &candidate;
    entry->ceilings = ceilings_.at(candidate.num_threads).get();
    Result& result = entry->result;
    result.suite = c.suite;
    result.name = c.c.name;
    result.backend = candidate.backend;
    result.isa = candidate.isa;
    result.threads = candidate.num_threads;
    result.block_size = c.c.spec.kv.block_size;
    result.kv_dtype = dtype_name(c.c.spec.kv.dtype);
    result.layout = layout_name(c.c.cache);
    result.hot = c.hot;
    result.baseline = c.baseline;
    try {
      prepare_entry(*entry, num_cases);
    } catch (const Error& error) {
      result.reason = concat(error_code_name(error.code()), ": ", error.what());
      entry->loaded.reset();
    }
    return entry;
  }

  // Loads, warms up and measures what needs no pairing; sets the reason where that is impossible.
  void prepare_entry(Entry& entry, std::size_t num_cases) {
    SharedCase& shared = *entry.shared;
    const BenchCase& c = *shared.description;
    AttentionBackend& backend = *entry.candidate->instance;
    Result& result = entry.result;
    KvLayout layout;  // some are read from a compiled model
    const double layout_seconds =
        seconds_of([&] { layout = layout_for(backend, shared.outline.spec, c.c.cache); });
    AttentionSpec spec = shared.outline.spec;
    spec.kv.layout = layout.id;
    const Support support = backend.supports(spec);
    if (!support.ok()) {
      result.reason = joined(support.reasons);
      return;
    }
    if (support.fused_append && c.operation == Operation::kAppend) {
      result.reason = "stores K and V only inside attend";
      return;
    }
    RotatingCache* cache = cache_for(shared, backend, spec, layout, num_cases);
    if (cache == nullptr) {
      result.reason = "not enough memory for one layer";
      return;
    }
    entry.loaded =
        std::make_unique<LoadedCase>(backend, c, shared.outline, shared.arrangement, spec, *cache);
    // The first call touches pages and wakes threads; only a short one is worth a second.
    constexpr double kLongSeconds = 0.1;
    double call_seconds = seconds_of([&] { entry.loaded->call(); });
    result.first_seconds = layout_seconds + entry.loaded->first_prepare_seconds() + call_seconds;
    if (call_seconds < kLongSeconds) call_seconds = seconds_of([&] { entry.loaded->call(); });
    if (c.operation != Operation::kAppend && !entry.loaded->output_is_finite()) {
      result.reason = "the output is not finite";
      return;
    }
    const double calls = std::ceil(options_.min_sample_seconds / std::max(call_seconds, 1e-9));
    entry.calls_per_sample = std::clamp<std::int64_t>(static_cast<std::int64_t>(calls), 1, 1000);
    if (c.operation == Operation::kAttend || c.operation == Operation::kStep) {
      std::vector<double> setups;
      for (int i = 0; i < 5; ++i) setups.push_back(seconds_of([&] { entry.loaded->prepare(); }));
      result.setup_seconds = median(setups);
    }
    choose_ceiling(entry);
  }

  // Which ceiling bounds the entry: the probe of its rounds.
  void choose_ceiling(Entry& entry) {
    const BenchCase& c = *entry.shared->description;
    Ceilings& ceilings = *entry.ceilings;
    if (c.c.cache == CacheStyle::kSeparate) entry.piece_bytes = piece_bytes(c.c.spec);
    if (entry.shared->work.moved_bytes > 0) {
      entry.rates.copy = ceilings.typical_copy();
    } else {
      entry.rates.read = ceilings.typical_read(entry.piece_bytes);
    }
    for (const PeakKind kind :
         peaks_of_level(entry.candidate->isa, c.c.spec.q_dtype, ceilings.peaks())) {
      const double rate = ceilings.typical_peak(kind);
      if (rate <= entry.rates.peak) continue;
      entry.rates.peak = rate;
      entry.peak = kind;
    }
    entry.bound = roof_of(entry.shared->work, entry.rates, c.hot).bound;
    entry.result.ceiling = entry.bound == Bound::kCopy   ? "memcpy"
                           : entry.bound == Bound::kPeak ? peak_name(entry.peak)
                           : entry.piece_bytes > 0       ? concat("read ", entry.piece_bytes)
                                                         : "read";
  }

  // One run of the probe that bounds the entry.
  static double probe(Entry& entry) {
    switch (entry.bound) {
      case Bound::kRead:
        return entry.ceilings->read(entry.piece_bytes);
      case Bound::kPeak:
        return entry.ceilings->peak(entry.peak);
      case Bound::kCopy:
        break;
    }
    return entry.ceilings->copy();
  }

  static double roof_seconds(const Entry& entry, double rate) {
    Rates rates = entry.rates;
    double& bound = entry.bound == Bound::kRead   ? rates.read
                    : entry.bound == Bound::kPeak ? rates.peak
                                                  : rates.copy;
    bound = rate;
    return roof_of(entry.shared->work, rates, entry.shared->description->hot).seconds;
  }

  // The probe, the candidate, the probe. Memory has slow phases that both feel: its ceiling is the
  // mean of the two. Registers have none, only moments in which somebody else had the core.
  static void sample(Entry& entry) {
    const double before = roof_seconds(entry, probe(entry));
    // The probe's threads are still about to sleep and the candidate's asleep: nothing beside a
    // long call, much beside a short one.
    if (entry.calls_per_sample > 1) entry.loaded->call();
    const double seconds = seconds_of([&] {
      for (std::int64_t i = 0; i < entry.calls_per_sample; ++i) entry.loaded->call();
    });
    const double after = roof_seconds(entry, probe(entry));
    entry.seconds.push_back(seconds / static_cast<double>(entry.calls_per_sample));
    entry.roof_seconds.push_back(entry.bound == Bound::kPeak ? std::min(before, after)
                                                             : (before + after) / 2);
  }

  static void finish(Entry& entry, const std::vector<std::unique_ptr<Entry>>& entries) {
    Result& result = entry.result;
    result.notes = entry.shared->notes;
    if (!result.measured() || entry.seconds.empty()) return;
    const Work& work = entry.shared->work;
    result.rounds = static_cast<int>(entry.seconds.size());
    result.seconds = smallest(entry.seconds);
    result.median_seconds = median(entry.seconds);
    result.bytes = static_cast<double>(work.bytes);
    result.flops = static_cast<double>(work.flops);
    result.bytes_per_second = result.bytes / result.seconds;
    result.flops_per_second = result.flops / result.seconds;
    result.share_of_ceiling = median_ratio(entry.roof_seconds, entry.seconds);
    std::vector<double> shares;
    for (std::size_t i = 0; i < entry.seconds.size(); ++i) {
      shares.push_back(entry.roof_seconds[i] / entry.seconds[i]);
    }
    result.spread = relative_spread(shares);
    bool is_first_found = false;
    for (const auto& other : entries) {
      if (other->seconds.empty()) continue;
      if (other->shared == entry.shared && !is_first_found) {
        is_first_found = true;
        result.ratio_to_first = median_ratio(entry.seconds, other->seconds);
      }
      if (other->candidate == entry.candidate && other->result.name == result.baseline) {
        result.ratio_to_baseline = median_ratio(entry.seconds, other->seconds);
      }
    }
  }

  // By the order of the cases, then of the candidates.
  void sort_results() {
    const auto position = [this](const Result& result) {
      return std::find_if(cases_.begin(), cases_.end(),
                          [&](const BenchCase& c) { return c.c.name == result.name; }) -
             cases_.begin();
    };
    std::stable_sort(report_.results.begin(), report_.results.end(),
                     [&](const Result& a, const Result& b) { return position(a) < position(b); });
  }

  void add_ceilings() {
    for (const auto& [num_threads, entry] : ceilings_) {
      Ceilings& ceilings = *entry;
      CeilingValues values;
      values.threads = num_threads;
      values.read_bytes_per_second = ceilings.typical_read();
      values.copy_bytes_per_second = ceilings.typical_copy();
      for (const PeakKind kind : peaks_) {
        values.flops_per_second.emplace_back(peak_name(kind), ceilings.typical_peak(kind));
      }
      for (const std::int64_t size : ceilings.piece_sizes()) {
        values.piece_read_bytes_per_second.emplace_back(size, ceilings.typical_read(size));
      }
      report_.ceilings.push_back(values);
    }
    std::reverse(report_.ceilings.begin(), report_.ceilings.end());
  }

  const std::vector<BenchCase>& cases_;
  const std::vector<Candidate>& candidates_;
  const RunOptions& options_;
  Report report_;
  std::vector<PeakKind> peaks_;
  std::unique_ptr<ProbeBuffer> buffer_;
  std::map<int, std::unique_ptr<Ceilings>> ceilings_;  // by number of threads
  std::int64_t num_done_ = 0;
};

}  // namespace

Report run_benchmarks(const std::vector<BenchCase>& cases, const std::vector<Candidate>& candidates,
                      const RunOptions& options) {
  require(options.num_rounds >= 1, "rounds must be at least 1, is ", options.num_rounds);
  return Runner(cases, candidates, options).run();
}

}  // namespace quire::benchmark
