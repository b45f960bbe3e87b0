// SPDX-License-Identifier: Apache-2.0
// The memory of the CUDA device that torch computes on, by the CUDA runtime that torch has loaded:
// neither a header nor a library of CUDA is needed to build this.
//
// Not torch's own allocator: that one hands out again what a recorded graph still writes to.
#pragma once

#include <memory>

#include "quire/device.h"

namespace quire::torch_sdpa {

// Throws Error(kUnsupported) with the name of what the runtime lacks. REQUIRES: missing_for_cuda()
// was empty.
std::unique_ptr<DeviceMemory> make_cuda_memory();

}  // namespace quire::torch_sdpa
