// SPDX-License-Identifier: Apache-2.0
#include "benchmark/runner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "base/check.h"
#include "benchmark/device_instrument.h"
#include "benchmark/host_instrument.h"
#include "benchmark/loaded_case.h"
#include "benchmark/statistics.h"

namespace quire::benchmark {
namespace {

using conformance::CacheStyle;

// Of the memory that is free, what caches may take.
constexpr double kMemoryShare = 0.6;
// Of the CPUs, beyond which others disturb a run.
constexpr double kBusyShare = 0.3;
// Samples that even a slow candidate gives.
constexpr std::size_t kFewestSamples = 3;

// A case on a candidate.
struct Entry {
  SharedCase* shared = nullptr;
  const Candidate* candidate = nullptr;
  Instrument* instrument = nullptr;
  AttentionSpec spec;  // with the layout of the cache
  std::unique_ptr<Measurement> measurement;
  std::vector<double> seconds;       // [rounds]
  std::vector<double> roof_seconds;  // [rounds]
  double spent_seconds = 0;          // in samples
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

// Over the rounds that both took part in.
double ratio_of_times(const Entry& entry, const Entry& other) {
  const std::size_t count = std::min(entry.seconds.size(), other.seconds.size());
  const std::vector<double> mine(entry.seconds.begin(),
                                 entry.seconds.begin() + static_cast<std::ptrdiff_t>(count));
  const std::vector<double> theirs(other.seconds.begin(),
                                   other.seconds.begin() + static_cast<std::ptrdiff_t>(count));
  return median_ratio(mine, theirs);
}

class Runner {
 public:
  Runner(const std::vector<BenchCase>& cases, const std::vector<Candidate>& candidates,
         const RunOptions& options)
      : cases_(cases), candidates_(candidates), options_(options) {
    report_.machine = detect_machine();
    const Machine& machine = report_.machine;
    if (machine.load_average > kBusyShare * machine.cpu.num_cpus) {
      report_.notes.push_back(concat("the machine was busy: load ",
                                     std::round(machine.load_average), " on ", machine.cpu.num_cpus,
                                     " CPUs before the run; trust ratios at most"));
    }
    make_instruments();
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

  void make_instruments() {
    for (const Candidate& owner : candidates_) {
      if (owner.meter == nullptr || instruments_.contains(&owner)) continue;
      // All that compute on a device are held to the same probes of it.
      const Device device = owner.instance->info().device;
      report_.devices.push_back(owner.meter->facts());
      device_instruments_.push_back(make_device_instrument(owner, options_));
      for (const Candidate& candidate : candidates_) {
        if (candidate.meter != nullptr && candidate.instance->info().device == device) {
          instruments_.emplace(&candidate, device_instruments_.back().get());
        }
      }
    }
    for (const Candidate& candidate : candidates_) {
      if (instruments_.contains(&candidate)) continue;
      if (buffer_ == nullptr) {
        buffer_ = make_probe_buffer(report_.machine, options_, report_.notes);
      }
      auto& instrument = host_instruments_[candidate.num_threads];
      if (instrument == nullptr) {
        instrument =
            make_host_instrument(report_.machine, *buffer_, candidate.num_threads, options_);
      }
      instruments_.emplace(&candidate, instrument.get());
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
        take_sample(*running[(i + static_cast<std::size_t>(round)) % running.size()]);
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
  static RotatingCache* cache_for(const Entry& entry, const KvLayout& layout,
                                  std::size_t num_cases) {
    SharedCase& shared = *entry.shared;
    AttentionBackend& backend = *entry.candidate->instance;
    for (const auto& cache : shared.caches) {
      if (cache->serves(backend, layout)) return cache.get();
    }
    const BenchCase& c = *shared.description;
    RotatingCache::Options options{.style = c.c.cache, .num_blocks = shared.arrangement.num_blocks};
    const std::int64_t layer_bytes = RotatingCache::layer_bytes(entry.spec, layout, options);
    // New K and V of an append are as many as what is stored, and rotate with it.
    const std::int64_t call_bytes = std::max<std::int64_t>(1, shared.work.unique_bytes);
    const std::int64_t source_bytes = c.operation == Operation::kAppend ? shared.work.bytes : 0;
    const std::int64_t cold_bytes = entry.instrument->cold_bytes();
    const std::int64_t wanted =
        c.hot ? 1 : std::max<std::int64_t>(2, (cold_bytes + call_bytes - 1) / call_bytes);
    const double free = kMemoryShare *
                        static_cast<double>(entry.instrument->free_bytes(*entry.candidate)) /
                        static_cast<double>(num_cases);
    const auto possible =
        static_cast<std::int64_t>(free / static_cast<double>(layer_bytes + source_bytes));
    if (possible < 1) return nullptr;
    options.num_layers = static_cast<int>(std::min(wanted, possible));
    if (possible < wanted) {
      shared.notes = concat("memory is short: rotates over ", possible * call_bytes >> 20,
                            " MiB, not ", wanted * call_bytes >> 20);
    }
    shared.caches.push_back(std::make_unique<RotatingCache>(backend, entry.spec, layout, options));
    return shared.caches.back().get();
  }

  std::unique_ptr<Entry> load(SharedCase& shared, const Candidate& candidate,
                              std::size_t num_cases) {
    auto entry = std::make_unique<Entry>();
    const BenchCase& c = *shared.description;
    entry->shared = &shared;
    entry->candidate = &candidate;
    entry->instrument = instruments_.at(&candidate);
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
      entry->measurement.reset();
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
    entry.spec = shared.outline.spec;
    entry.spec.kv.layout = layout.id;
    const Support support = backend.supports(entry.spec);
    if (!support.ok()) {
      result.reason = joined(support.reasons);
      return;
    }
    if (support.fused_append && c.operation == Operation::kAppend) {
      result.reason = "stores K and V only inside attend";
      return;
    }
    RotatingCache* cache = cache_for(entry, layout, num_cases);
    if (cache == nullptr) {
      result.reason = "not enough memory for one layer";
      return;
    }
    entry.measurement = entry.instrument->load(
        {.shared = shared, .candidate = *entry.candidate, .spec = entry.spec, .cache = *cache},
        result);
    result.first_seconds += layout_seconds;
  }

  static void take_sample(Entry& entry) {
    const bool is_slow = entry.spent_seconds > entry.instrument->patience_seconds();
    if (entry.measurement == nullptr || (is_slow && entry.seconds.size() >= kFewestSamples)) return;
    try {
      entry.spent_seconds += seconds_of([&] {
        const Sample sample = entry.measurement->sample();
        entry.seconds.push_back(sample.seconds);
        entry.roof_seconds.push_back(sample.roof_seconds);
      });
    } catch (const Error& error) {
      entry.result.reason = concat(error_code_name(error.code()), ": ", error.what());
      entry.measurement.reset();
    }
  }

  static void finish(Entry& entry, const std::vector<std::unique_ptr<Entry>>& entries) {
    Result& result = entry.result;
    if (result.notes.empty()) result.notes = entry.shared->notes;
    if (!result.measured() || entry.seconds.empty()) return;
    const Work& work = entry.shared->work;
    result.rounds = static_cast<int>(entry.seconds.size());
    result.seconds = smallest(entry.seconds);
    result.median_seconds = median(entry.seconds);
    result.bytes = static_cast<double>(work.bytes);
    result.flops = static_cast<double>(work.flops);
    result.bytes_per_second = result.bytes / result.typical_seconds();
    result.flops_per_second = result.flops / result.typical_seconds();
    entry.measurement->finish(result);
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
        result.ratio_to_first = ratio_of_times(entry, *other);
      }
      if (other->candidate == entry.candidate && other->result.name == result.baseline) {
        result.ratio_to_baseline = ratio_of_times(entry, *other);
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
    for (const auto& instrument : device_instruments_) {
      report_.ceilings.push_back(instrument->ceilings());
    }
    for (const auto& [num_threads, instrument] : host_instruments_) {
      report_.ceilings.push_back(instrument->ceilings());
    }
  }

  const std::vector<BenchCase>& cases_;
  const std::vector<Candidate>& candidates_;
  const RunOptions& options_;
  Report report_;
  std::unique_ptr<ProbeBuffer> buffer_;
  // By number of threads, most first.
  std::map<int, std::unique_ptr<Instrument>, std::greater<>> host_instruments_;
  std::vector<std::unique_ptr<Instrument>> device_instruments_;
  std::map<const Candidate*, Instrument*> instruments_;
  std::int64_t num_done_ = 0;
};

}  // namespace

Report run_benchmarks(const std::vector<BenchCase>& cases, const std::vector<Candidate>& candidates,
                      const RunOptions& options) {
  require(options.num_rounds >= 1, "rounds must be at least 1, is ", options.num_rounds);
  return Runner(cases, candidates, options).run();
}

}  // namespace quire::benchmark
