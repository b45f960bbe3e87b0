// SPDX-License-Identifier: Apache-2.0
// A kernel of src/gpu as a function that CUDA launches. For files that nvcc compiles.
#pragma once

#include "backends/cuda/cuda_kernels.h"
#include "gpu/kernels/kernel_table.h"

namespace quire::gpu {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    cuda_entry(const __grid_constant__ typename Kernel::Args args) {
  // This grid may have been launched before the last one ended, and the next may be before this
  // one.
  gpu::wait_for_last_grid();
  gpu::let_next_grid_start();
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
