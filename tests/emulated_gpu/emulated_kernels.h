// SPDX-License-Identifier: Apache-2.0
// Launches of the GPU kernels on the emulator. The other side is compiled with its hooks.
#pragma once

#include <cstdint>

#include "backends/gpu/gpu_runtime.h"

namespace quire::testing {

struct EmulatedLaunch {
  int num_blocks = 1;
  int warp_width = 32;
  std::uint64_t seed = 0;  // order of threads and blocks
  // Only what the kernel does while the last grid may not have ended.
  bool only_prefetch = false;
};

void launch_emulated(const gpu::KernelId& kernel, const EmulatedLaunch& launch, const void* args);
// What a block of the kernel needs of shared memory.
int emulated_shared_bytes(const gpu::KernelId& kernel);

}  // namespace quire::testing
