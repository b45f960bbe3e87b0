// SPDX-License-Identifier: Apache-2.0
#include "benchmark/device_ceilings.h"

#include <algorithm>

#include "benchmark/statistics.h"

namespace quire::benchmark {
namespace {

// Enough for a median where a limit was measured for its own sake only.
constexpr std::size_t kRunsForMedian = 5;

}  // namespace

void DeviceCeilings::enqueue(const DeviceProbe& probe, int place) {
  Pending& pending = pending_[place];
  pending.probe = probe;
  meter_.set_mark(2 * place, stream_);
  pending.amount = meter_.enqueue_probe(probe.limit, probe.region_bytes, stream_);
  meter_.set_mark(2 * place + 1, stream_);
  amounts_[probe] = pending.amount;
}

double DeviceCeilings::collect(int place) {
  const Pending& pending = pending_[place];
  // A clock may be too coarse for a short run.
  const double seconds = std::max(meter_.seconds_between(2 * place, 2 * place + 1), 1e-9);
  std::vector<double>& rates = rates_[pending.probe];
  rates.push_back(pending.amount / seconds);
  return rates.back();
}

void DeviceCeilings::enqueue_filler(const DeviceProbe& probe) {
  static_cast<void>(meter_.enqueue_probe(probe.limit, probe.region_bytes, stream_));
}

double DeviceCeilings::typical(const DeviceProbe& probe) {
  while (rates_[probe].size() < kRunsForMedian) {
    if (rates_[probe].empty()) enqueue_filler(probe);  // what is made once is made here
    enqueue_filler(probe);
    enqueue(probe, 0);
    static_cast<void>(collect(0));
  }
  return median(rates_[probe]);
}

double DeviceCeilings::typical_seconds(const DeviceProbe& probe) {
  const double rate = typical(probe);
  return amounts_.at(probe) / rate;
}

std::vector<DeviceProbe> DeviceCeilings::measured() const {
  std::vector<DeviceProbe> probes;
  for (const auto& [probe, rates] : rates_) probes.push_back(probe);
  return probes;
}

}  // namespace quire::benchmark
