// SPDX-License-Identifier: Apache-2.0
// A kernel of src/gpu as a function that CUDA launches. For files that nvcc compiles.
#pragma once

#include "backends/cuda/cuda_kernels.h"
#include "gpu/kernels/kernel_table.h"

namespace quire::gpu {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads)
    cuda_entry(const __grid_constant__ typename Kernel::Args args) {
  Kernel::run(args);
}

struct MakeCudaKernel {
  template <class Kernel>
  CudaKernel operator()(Kernel) const {
    return {reinterpret_cast<const void*>(&cuda_entry<Kernel>), Kernel::kThreads,
            Kernel::kSharedBytes};
  }
};

}  // namespace quire::gpu
