// SPDX-License-Identifier: Apache-2.0
// The GPU backend on the emulator: the same host code and the same kernels as on a device, with
// every access of a kernel checked. For tests.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/gpu_meter.h"
#include "quire/backend.h"

namespace quire::testing {

struct EmulatedGpuOptions {
  int warp_width = 32;
  std::uint64_t seed = 0;
  int num_processors = 3;
  int shared_bytes = 227 * 1024;  // of a block
  bool check_blocks = false;
};

std::unique_ptr<AttentionBackend> make_emulated_gpu(const EmulatedGpuOptions& options = {});
// Its probes run over memory of their own, a little of it.
std::unique_ptr<DeviceMeter> make_emulated_meter(const EmulatedGpuOptions& options = {});

}  // namespace quire::testing
