// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as the GPU backend needs it. The runtime library is linked statically and finds
// the driver when it is first called, so a machine without one can still load this.
#pragma once

#include <memory>

#include "backends/gpu/gpu_runtime.h"
#include "quire/registry.h"

namespace quire::gpu {

// Why there is no device to use, or its version.
Availability probe_cuda();
std::unique_ptr<GpuRuntime> make_cuda_runtime();

}  // namespace quire::gpu
