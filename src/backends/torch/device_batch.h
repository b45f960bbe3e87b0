// SPDX-License-Identifier: Apache-2.0
// A prepared batch of the device path: its plan, and the lists of it in device memory.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/batch_arrays.h"
#include "backends/torch/device_attend.h"
#include "backends/torch/device_plan.h"
#include "quire/device.h"
#include "quire/prepared_batch.h"

namespace quire::torch_sdpa {

// Memory of a device. Move-only.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(DeviceMemory& memory, std::int64_t size_bytes);
  DeviceBytes(DeviceBytes&& other) noexcept;
  DeviceBytes& operator=(DeviceBytes&& other) noexcept;
  ~DeviceBytes();

  void* data() const noexcept { return data_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  DeviceMemory* memory_ = nullptr;
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

class DevicePrepared final : public PreparedBatch {
 public:
  DevicePrepared(DeviceMemory& memory, const AttentionSpec& spec, const BatchBounds& bounds,
                 const Workspace& workspace)
      : PreparedBatch(spec, bounds, workspace), memory_(memory) {}

  // Of the lists, on the host and on the device.
  static std::int64_t list_bytes(const BatchBounds& bounds) noexcept;

  // Plans batch() and brings the lists to the device; waits for the stream. Throws
  // Error(kInvalidArgument) for what is wrong with metadata in device memory.
  void plan(at::Device device, Stream stream);
  // Throws Error(kInvalidArgument) if the batch names what the cache does not have; of metadata on
  // the host that has been checked.
  void require_fits(const KvCacheView& cache) const;

  DevicePlan calls;
  PlanTensors lists;
  mutable Stream last_stream;  // of work on the batch: whose errors poll reports

 private:
  BatchView host_batch(Stream stream);
  void upload(at::Device device, Stream stream);

  DeviceMemory& memory_;
  CopiedArrays host_arrays_;  // of arrays that lie on the device
  BatchFacts found_;          // of metadata that was copied from the device
  DeviceBytes patterns_;
};

}  // namespace quire::torch_sdpa
