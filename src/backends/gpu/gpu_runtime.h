// SPDX-License-Identifier: Apache-2.0
// What the GPU backend and its meter need of a device: memory, launches of the kernels of src/gpu,
// points in time, and a few facts. One implementation for each of CUDA, AMD and the emulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "quire/device.h"
#include "quire/dtype.h"
#include "registry/device_meter.h"

namespace quire::gpu {

enum class KernelKind : std::uint8_t {
  kPlanItems,
  kCheckBlocks,
  kAppendRows,
  kAppendVectors,
  kAppendScaled,
  kCopyBlocks,
  kCopyRecords,
  kMergePartials,
  kStreamBytes,
  kMultiplyRate,
  kAttendRows,
  kAttendFew,
  kAttendStream,
  kAttendTile,
};

// The kernels that have an instance for each format and width of K and V.
constexpr bool is_by_format(KernelKind kind) {
  return kind >= KernelKind::kAttendFew;
}

// A kernel, and which instance of it: `stored` and `dims` matter where is_by_format.
struct KernelId {
  KernelKind kind = KernelKind::kPlanItems;
  DType stored = DType::kBF16;
  int dims = 0;  // 64, 128 or 256
};

// All calls may be made from any thread.
class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  virtual DeviceMemory& memory() = 0;
  virtual std::string version() const = 0;       // of the device's software
  virtual std::string architecture() const = 0;  // "sm_90"
  virtual int num_processors() const = 0;
  virtual std::int64_t cache_bytes() const = 0;  // of the cache that all processors share
  // Whether a block of this kernel fits: one that does not is never launched.
  virtual bool fits(const KernelId& kernel) = 0;
  // How many blocks of this kernel one processor holds at a time, at least 1.
  virtual int blocks_per_processor(const KernelId& kernel) = 0;

  // Grids of AttendArgs that join the last one run beside it.
  virtual bool overlaps_grids() const = 0;

  // `args` is the argument struct of the kernel, copied before the call returns.
  virtual void launch(const KernelId& kernel, int num_blocks, const void* args, Stream stream) = 0;

  // Copies that a kernel makes can reach it: device memory, or host memory known to the device.
  virtual bool is_reachable(const void* data) = 0;
  virtual bool is_capturing(Stream stream) = 0;

  // Points in a stream. A fence that was never recorded has been passed.
  virtual void* create_fence() = 0;
  virtual void destroy_fence(void* fence) noexcept = 0;
  virtual void record_fence(void* fence, Stream stream) = 0;
  virtual void wait_fence(void* fence) = 0;

  // For the meter. Fences with a time know the seconds between two that were passed.
  virtual void* create_timed_fence() = 0;
  virtual double seconds_between(void* first, void* last) = 0;
  virtual std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream stream) = 0;
  virtual DeviceFacts facts() const = 0;
  virtual std::int64_t free_memory_bytes() = 0;
};

}  // namespace quire::gpu
