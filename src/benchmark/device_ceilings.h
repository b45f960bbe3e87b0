// SPDX-License-Identifier: Apache-2.0
// The limits of a device, measured between the samples of a run. Runs of the probes are enqueued
// like other work, so that the device is never idle beside what is measured.
//
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "quire/device.h"
#include "registry/device_meter.h"

namespace quire::benchmark {

// What a probe measures; a region of 0 is more than any cache holds.
struct DeviceProbe {
  DeviceLimit limit = DeviceLimit::kRead;
  std::int64_t region_bytes = 0;

  friend bool operator<(const DeviceProbe& a, const DeviceProbe& b) {
    return std::tie(a.limit, a.region_bytes) < std::tie(b.limit, b.region_bytes);
  }
};

class DeviceCeilings {
 public:
  // The marks from kFirstFreeMark on are for others.
  static constexpr int kFirstFreeMark = 4;

  // The meter must outlive it.
  DeviceCeilings(DeviceMeter& meter, Stream stream) : meter_(meter), stream_(stream) {}

  // A run whose rate is asked for later. Two may be under way: `place` is 0 or 1.
  void enqueue(const DeviceProbe& probe, int place);
  double collect(int place);  // waits
  // One that only keeps the device busy.
  void enqueue_filler(const DeviceProbe& probe);

  // The median of all runs so far; measures where there are few.
  double typical(const DeviceProbe& probe);
  double typical_seconds(const DeviceProbe& probe);  // of one run
  std::vector<DeviceProbe> measured() const;

 private:
  struct Pending {
    DeviceProbe probe;
    double amount = 0;
  };
  DeviceMeter& meter_;
  Stream stream_;
  Pending pending_[2];
  std::map<DeviceProbe, std::vector<double>> rates_;
  std::map<DeviceProbe, double> amounts_;
};

}  // namespace quire::benchmark
