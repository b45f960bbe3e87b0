// SPDX-License-Identifier: Apache-2.0
// What a benchmark needs of a device beside its backend: the device's own clock, work recorded once
// and replayed, and probes of the device's limits. A plug-in may offer one (plugin.h); it works on
// the streams and the memory of any backend of the same device.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "quire/device.h"

namespace quire {

struct DeviceFacts {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  std::string version;       // of the device's software
  int num_processors = 0;
  std::int64_t cache_bytes = 0;  // of the last level
  std::int64_t memory_bytes = 0;
};

// What bounds work on a device, by the probe that measures it.
enum class DeviceLimit : std::uint8_t {
  kRead,      // bytes read from device memory
  kCopy,      // bytes copied within it
  kMultiply,  // operations of products of bf16 matrices
  kToHost,    // bytes copied to pinned host memory
  kToDevice,  // bytes copied from it
};
inline constexpr int kNumDeviceLimits = 5;

// Work that was recorded, and how it is enqueued again.
class DeviceRecording {
 public:
  virtual ~DeviceRecording() = default;
  virtual void replay(Stream stream) = 0;
};

class DeviceMeter {
 public:
  static constexpr int kNumMarks = 16;

  virtual ~DeviceMeter() = default;

  virtual DeviceFacts facts() const = 0;
  virtual std::int64_t free_memory_bytes() = 0;

  // What `enqueue` puts on the stream, without running it; where a device cannot record, a replay
  // calls `enqueue` again. Throws what `enqueue` throws. The stream must not be the default one.
  virtual std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream stream) = 0;

  // Marks are points in the order of a stream. The seconds between two of them are those of the
  // device; asking waits for both. REQUIRES: 0 <= mark < kNumMarks, both were set.
  virtual void set_mark(int mark, Stream stream) = 0;
  virtual double seconds_between(int first, int last) = 0;

  // Enqueues one run of a probe and returns how many bytes or operations it takes. kRead reads
  // `region_bytes` again and again, which caches may hold; 0: more than any cache does.
  virtual double enqueue_probe(DeviceLimit limit, std::int64_t region_bytes, Stream stream) = 0;
};

}  // namespace quire
