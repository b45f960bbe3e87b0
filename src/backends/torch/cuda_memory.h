// SPDX-License-Identifier: Apache-2.0
// The memory of the CUDA device that torch computes on, by the CUDA runtime that torch has loaded:
// neither a header nor a library of CUDA is needed to build this.
//
// Not torch's own allocator: that one hands out again what a recorded graph still writes to. The
// device is the one that was current where the memory was made; the current device of a thread that
// calls is put back after every call.
#pragma once

#include <memory>
#include <string>

#include "quire/device.h"
#include "quire/error.h"

namespace quire::torch_sdpa {

class PolledMemory : public DeviceMemory {
 public:
  // What work on the stream has failed with by now. Does not wait.
  virtual Status poll(Stream stream) = 0;
};

inline constexpr const char* kTorchCudaLibrary = "libtorch_cuda.so";

// Why the current device cannot be used through the runtime that came with a loaded library: the
// name of a symbol that is missing, the runtime's words, the capability of the device. Empty: it
// can be.
std::string missing_in_cuda_runtime(const char* library = kTorchCudaLibrary);

// Throws Error(kUnsupported) with the name of what the runtime lacks.
std::unique_ptr<PolledMemory> make_cuda_memory(const char* library = kTorchCudaLibrary);

}  // namespace quire::torch_sdpa
