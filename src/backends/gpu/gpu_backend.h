// SPDX-License-Identifier: Apache-2.0
// The backend of every GPU: which kernels run, over which memory. Devices differ in their runtime
// (gpu_runtime.h) alone.
//
// Metadata on the host is copied to the workspace by prepare; metadata on the device is read where
// it lies. Either way the plan is made on the device and nothing is read back, so calls can be
// captured into a graph: with metadata on the device all of them, prepare included; with metadata
// on the host those after prepare.
#pragma once

#include <memory>

#include "backends/gpu/gpu_runtime.h"
#include "quire/backend.h"

namespace quire::gpu {

struct GpuBackendOptions {
  const char* name = "cuda";
  bool check_blocks = false;  // QUIRE_CHECK_BLOCKS: verify block ids on the device, at every call
};

std::unique_ptr<AttentionBackend> make_gpu_backend(std::unique_ptr<GpuRuntime> runtime,
                                                   const GpuBackendOptions& options);

}  // namespace quire::gpu
