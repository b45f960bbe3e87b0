// SPDX-License-Identifier: Apache-2.0
#include "benchmark/device_instrument.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "benchmark/device_ceilings.h"
#include "benchmark/loaded_case.h"
#include "benchmark/runner.h"
#include "benchmark/statistics.h"
#include "registry/dense_stages.h"

namespace quire::benchmark {
namespace {

constexpr const char* kPeakName = "bf16_mma";

// Calls of a recording, unless they are long or the layers of the cache more.
constexpr std::int64_t kCallsPerRecording = kLayersPerPlan;
constexpr std::int64_t kPlansPerRecording = 16;
constexpr std::int64_t kMaxCallsPerRecording = 1024;
constexpr std::int64_t kMaxReplays = 64;
// Copies that are enqueued at once: a backend may wait for its staging beyond a few.
constexpr std::int64_t kQueuedCalls = 4;
constexpr std::int64_t kMaxFillers = 64;

constexpr int kCallsBegin = DeviceCeilings::kFirstFreeMark;
constexpr int kCallsEnd = kCallsBegin + 1;
constexpr int kPlanBegin = kCallsBegin + 2;
constexpr int kPlanEnd = kCallsBegin + 3;

bool is_copy(Operation operation) {
  return operation == Operation::kCopy || operation == Operation::kSwapOut ||
         operation == Operation::kSwapIn;
}

// Gathers K and V before its library attends: the two are timed apart, and it plans on the host.
bool is_dense(const Candidate& candidate) {
  return dynamic_cast<DenseStages*>(candidate.instance.get()) != nullptr;
}

// The limit that bounds a case, its name, and the time that it allows.
class DeviceBound {
 public:
  DeviceBound(const SharedCase& shared, DeviceCeilings& ceilings) : shared_(shared) {
    choose(ceilings);
    // A probe finds its own best form when it first runs, which must not be within a sample.
    static_cast<void>(ceilings.typical(probe_));
  }

  const DeviceProbe& probe() const noexcept { return probe_; }
  const char* name() const noexcept { return name_; }

  double roof_seconds(double rate) const {
    Rates rates = rates_;
    bounding_rate(rates, bound_) = rate;
    return roof_of(shared_.work, rates, /*hot=*/false).seconds;
  }

 private:
  void choose(DeviceCeilings& ceilings) {
    const SharedCase& shared = shared_;
    const BenchCase& c = *shared.description;
    const DeviceProbe multiply{.limit = DeviceLimit::kMultiply, .region_bytes = 0};
    switch (c.operation) {
      case Operation::kCopy:
      case Operation::kAppend:
        set(Bound::kCopy, {.limit = DeviceLimit::kCopy, .region_bytes = 0}, "copy");
        return;
      case Operation::kSwapOut:
        set(Bound::kCopy, {.limit = DeviceLimit::kToHost, .region_bytes = 0}, "to host");
        return;
      case Operation::kSwapIn:
        set(Bound::kCopy, {.limit = DeviceLimit::kToDevice, .region_bytes = 0}, "to device");
        return;
      case Operation::kAttend:
      case Operation::kStep:
        break;
    }
    // What is replayed may be read from the cache of the device.
    set(Bound::kRead,
        {.limit = DeviceLimit::kRead, .region_bytes = c.hot ? shared.work.unique_bytes : 0},
        c.hot ? "cached read" : "read");
    rates_.read = ceilings.typical(probe_);
    if (dtype_bytes(c.c.spec.q_dtype) != 2) return;  // matrix units have no such limit for f32
    rates_.peak = ceilings.typical(multiply);
    if (roof_of(shared.work, rates_, /*hot=*/false).bound == Bound::kPeak) {
      set(Bound::kPeak, multiply, kPeakName);
    }
  }

  void set(Bound bound, const DeviceProbe& probe, const char* name) {
    bound_ = bound;
    probe_ = probe;
    name_ = name;
  }

  const SharedCase& shared_;
  Bound bound_ = Bound::kRead;
  DeviceProbe probe_;
  const char* name_ = "";
  Rates rates_;
};

class DeviceMeasurement final : public Measurement {
 public:
  DeviceMeasurement(const CaseOnCandidate& c, DeviceMeter& meter, DeviceCeilings& ceilings,
                    Stream stream)
      : operation_(c.shared.description->operation),
        backend_(*c.candidate.instance),
        meter_(meter),
        ceilings_(ceilings),
        stream_(stream),
        num_layers_(c.cache.num_layers()),
        loaded_(backend_, *c.shared.description, c.shared.outline, c.shared.arrangement, c.spec,
                c.cache,
                {.stream = stream,
                 .metadata_on_device = !is_dense(c.candidate),
                 .gathered = is_dense(c.candidate)}),
        bound_(c.shared, ceilings) {}

  // False, with a reason, where the output is nonsense.
  bool warm_up(double min_sample_seconds, Result& result) {
    const double first_call = seconds_of([&] { loaded_.call(); });
    result.first_seconds = loaded_.first_prepare_seconds() + first_call;
    result.ceiling = bound_.name();
    loaded_.raise_faults();
    if (operation_ != Operation::kAppend && !loaded_.output_is_finite()) {
      result.reason = "the output is not finite";
      return false;
    }
    std::vector<double> host_seconds;
    for (int i = 0; i < 5; ++i) {
      host_seconds.push_back(seconds_of([&] { loaded_.enqueue(); }));
      backend_.memory().synchronize(stream_);
    }
    result.host_seconds = median(host_seconds);
    if (is_copy(operation_)) {
      queue(result);
    } else if (loaded_.is_gathered()) {
      warm_up_dense(min_sample_seconds, result);
    } else {
      result.timing = "graph";
      record(min_sample_seconds);
    }
    return true;
  }

  // All of it is enqueued before anything is waited for: the device goes from the probe to the
  // calls without a pause.
  Sample sample() override {
    ceilings_.enqueue(bound_.probe(), 0);
    for (std::int64_t i = 0; i < num_fillers_; ++i) ceilings_.enqueue_filler(bound_.probe());
    // The probe has filled the caches of the device.
    if (recording_ != nullptr) recording_->replay(stream_);
    meter_.set_mark(kCallsBegin, stream_);
    if (recording_ != nullptr) {
      for (std::int64_t i = 0; i < num_replays_; ++i) recording_->replay(stream_);
    } else {
      for (std::int64_t i = 0; i < calls_; ++i) loaded_.enqueue();
    }
    meter_.set_mark(kCallsEnd, stream_);
    ceilings_.enqueue(bound_.probe(), 1);
    enqueue_apart();
    backend_.memory().synchronize(stream_);
    loaded_.raise_faults();

    Sample sample;
    sample.seconds = std::max(meter_.seconds_between(kCallsBegin, kCallsEnd), 1e-9) /
                     static_cast<double>(calls_ * num_replays_);
    layer_seconds_.push_back(sample.seconds);
    if (loaded_.is_gathered()) {
      gather_seconds_.push_back(meter_.seconds_between(kPlanBegin, kPlanEnd) /
                                static_cast<double>(num_layers_));
    }
    if (plan_ != nullptr) {
      plan_seconds_.push_back(meter_.seconds_between(kPlanBegin, kPlanEnd) /
                              static_cast<double>(kPlansPerRecording));
      if (operation_ == Operation::kAttend) sample.seconds += plan_seconds_.back() / kLayersPerPlan;
    }
    const double before = bound_.roof_seconds(ceilings_.collect(0));
    const double after = bound_.roof_seconds(ceilings_.collect(1));
    sample.roof_seconds = (before + after) / 2;
    return sample;
  }

  void finish(Result& result) const override {
    if (!layer_seconds_.empty()) result.layer_seconds = median(layer_seconds_);
    if (!gather_seconds_.empty()) result.gather_seconds = median(gather_seconds_);
    if (plan_seconds_.empty()) return;
    result.setup_seconds = median(plan_seconds_);
    if (operation_ == Operation::kAttend) result.layers_per_plan = kLayersPerPlan;
  }

 private:
  // Plain calls, enqueued while the device is still busy with probes.
  void queue(Result& result) {
    result.timing = "queued";
    calls_ = kQueuedCalls;
    num_replays_ = 1;
    const double cover = 2 * result.host_seconds * static_cast<double>(calls_);
    const double fillers = std::ceil(cover / ceilings_.typical_seconds(bound_.probe()));
    num_fillers_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(fillers), 1, kMaxFillers);
  }

  // A library that is not ours may do what no recording holds.
  void warm_up_dense(double min_sample_seconds, Result& result) {
    std::vector<double> setups;
    for (int i = 0; i < 5; ++i) setups.push_back(seconds_of([&] { loaded_.prepare(); }));
    result.setup_seconds = median(setups);
    result.timing = "graph";
    try {
      record(min_sample_seconds);
    } catch (const Error& error) {
      recording_.reset();
      gather_.reset();
      queue(result);
      result.notes = concat("cannot be recorded: ", error.what());
    }
    loaded_.rewind();
  }

  // What is timed beside the calls: planning, or the gather of a dense peer.
  void enqueue_apart() {
    DeviceRecording* const apart = plan_ != nullptr ? plan_.get() : gather_.get();
    if (apart != nullptr) {
      apart->replay(stream_);
      meter_.set_mark(kPlanBegin, stream_);
      apart->replay(stream_);
      meter_.set_mark(kPlanEnd, stream_);
    } else if (loaded_.is_gathered()) {
      meter_.set_mark(kPlanBegin, stream_);
      for (std::int64_t i = 0; i < num_layers_; ++i) loaded_.enqueue_gather();
      meter_.set_mark(kPlanEnd, stream_);
    }
  }

  // Whole rounds over the layers of the cache, so that a replay finds none that it just left.
  void record(double min_sample_seconds) {
    meter_.set_mark(kCallsBegin, stream_);
    for (int i = 0; i < 4; ++i) loaded_.enqueue();
    meter_.set_mark(kCallsEnd, stream_);
    const double call_seconds = std::max(meter_.seconds_between(kCallsBegin, kCallsEnd) / 4, 1e-9);
    const auto wanted = static_cast<std::int64_t>(std::ceil(
        std::min(min_sample_seconds / call_seconds, static_cast<double>(kCallsPerRecording))));
    const std::int64_t rounds = (std::max<std::int64_t>(wanted, 1) + num_layers_ - 1) / num_layers_;
    calls_ = std::min(rounds * num_layers_, kMaxCallsPerRecording);
    const double replays = min_sample_seconds / (static_cast<double>(calls_) * call_seconds);
    num_replays_ =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(replays)), 1, kMaxReplays);
    loaded_.rewind();
    recording_ = meter_.record(
        [this] {
          for (std::int64_t i = 0; i < calls_; ++i) loaded_.enqueue();
        },
        stream_);
    if (loaded_.is_gathered()) {
      loaded_.rewind();
      gather_ = meter_.record(
          [this] {
            for (std::int64_t i = 0; i < num_layers_; ++i) loaded_.enqueue_gather();
          },
          stream_);
      return;
    }
    if (operation_ != Operation::kAttend && operation_ != Operation::kStep) return;
    plan_ = meter_.record(
        [this] {
          for (std::int64_t i = 0; i < kPlansPerRecording; ++i) loaded_.prepare();
        },
        stream_);
  }

  Operation operation_;
  AttentionBackend& backend_;
  DeviceMeter& meter_;
  DeviceCeilings& ceilings_;
  Stream stream_;
  std::int64_t num_layers_;
  LoadedCase loaded_;
  DeviceBound bound_;
  std::unique_ptr<DeviceRecording> recording_;
  std::unique_ptr<DeviceRecording> plan_;
  std::unique_ptr<DeviceRecording> gather_;  // of all layers
  std::int64_t calls_ = 1;                   // of a recording, or of a sample
  std::int64_t num_replays_ = 1;
  std::int64_t num_fillers_ = 0;
  std::vector<double> layer_seconds_;
  std::vector<double> plan_seconds_;
  std::vector<double> gather_seconds_;
};

class DeviceInstrument final : public Instrument {
 public:
  DeviceInstrument(const Candidate& owner, const RunOptions& options)
      : meter_(*owner.meter),
        memory_(owner.instance->memory()),
        options_(options),
        facts_(meter_.facts()),
        stream_(memory_.create_stream()),
        ceilings_(meter_, stream_) {}
  ~DeviceInstrument() override { memory_.destroy_stream(stream_); }
  DeviceInstrument(const DeviceInstrument&) = delete;
  DeviceInstrument& operator=(const DeviceInstrument&) = delete;

  std::int64_t cold_bytes() const override { return options_.cache_multiple * facts_.cache_bytes; }
  std::int64_t free_bytes(const Candidate&) override { return meter_.free_memory_bytes(); }
  double patience_seconds() const override { return 4; }

  std::unique_ptr<Measurement> load(const CaseOnCandidate& c, Result& result) override {
    if (is_dense(c.candidate) && c.shared.description->operation == Operation::kStep) {
      result.reason = "prepare waits for the host: a step cannot be recorded";
      return nullptr;
    }
    auto measurement = std::make_unique<DeviceMeasurement>(c, meter_, ceilings_, stream_);
    if (!measurement->warm_up(options_.min_sample_seconds, result)) return nullptr;
    return measurement;
  }

  CeilingValues ceilings() override {
    CeilingValues values;
    values.device = facts_.name;
    values.read_bytes_per_second = ceilings_.typical({DeviceLimit::kRead, 0});
    values.copy_bytes_per_second = ceilings_.typical({DeviceLimit::kCopy, 0});
    values.flops_per_second.emplace_back(kPeakName, ceilings_.typical({DeviceLimit::kMultiply, 0}));
    values.to_host_bytes_per_second = ceilings_.typical({DeviceLimit::kToHost, 0});
    values.to_device_bytes_per_second = ceilings_.typical({DeviceLimit::kToDevice, 0});
    for (const DeviceProbe& probe : ceilings_.measured()) {
      if (probe.limit != DeviceLimit::kRead || probe.region_bytes == 0) continue;
      values.cached_read_bytes_per_second.emplace_back(probe.region_bytes,
                                                       ceilings_.typical(probe));
    }
    return values;
  }

 private:
  DeviceMeter& meter_;
  DeviceMemory& memory_;
  const RunOptions& options_;
  DeviceFacts facts_;
  Stream stream_;
  DeviceCeilings ceilings_;
};

}  // namespace

std::unique_ptr<Instrument> make_device_instrument(const Candidate& owner,
                                                   const RunOptions& options) {
  return std::make_unique<DeviceInstrument>(owner, options);
}

}  // namespace quire::benchmark
