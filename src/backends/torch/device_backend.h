// SPDX-License-Identifier: Apache-2.0
// The level `cuda` of the backend `torch`: caches, tensors and parameters lie in device memory, and
// all work on them is operations of torch on the stream of the call. Metadata is read on the host:
// prepare copies it there if it lies on the device, and waits.
#pragma once

#include <memory>

#include "backends/torch/cuda_memory.h"
#include "quire/backend.h"
#include "quire/registry.h"

namespace quire::torch_sdpa {

// Throws Error(kUnsupported) where torch cannot use CUDA.
std::unique_ptr<AttentionBackend> make_cuda_backend();

// The same operations on tensors in host memory, where the only kernel is torch's own of the CPU:
// for tests on machines without a device. `memory` may be null: quire's own.
std::unique_ptr<AttentionBackend> make_device_backend_on_host(
    std::unique_ptr<PolledMemory> memory = nullptr);

}  // namespace quire::torch_sdpa
