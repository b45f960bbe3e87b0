// SPDX-License-Identifier: Apache-2.0
// The meter of every GPU (registry/device_meter.h), over a runtime of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/gpu/gpu_runtime.h"
#include "registry/device_meter.h"

namespace quire::gpu {

struct GpuMeterOptions {
  std::int64_t memory_bytes = std::int64_t{1} << 30;  // that a probe of device memory goes over
  std::int64_t link_bytes = std::int64_t{128} << 20;  // that one of the link copies
  int multiply_steps = 2048;
};

std::unique_ptr<DeviceMeter> make_gpu_meter(std::unique_ptr<GpuRuntime> runtime,
                                            const GpuMeterOptions& options = {});

}  // namespace quire::gpu
