// SPDX-License-Identifier: Apache-2.0
// A kernel of src/gpu as a function that CUDA launches. For files that nvcc compiles.
#pragma once

#include "backends/cuda/cuda_kernels.h"
#include "gpu/kernels/kernel_table.h"

namespace quire::gpu {

QUIRE_DEVICE bool joins_last_grid(const AttendArgs& args) {
  return args.joins_last_grid;
}
template <class Args>
QUIRE_DEVICE bool joins_last_grid(const Args&) {
  return false;
}

// Whether the kernel itself says when the next grid may start.
template <class Kernel, class Args>
QUIRE_DEVICE bool starts_next_itself(const Args& args) {
  if constexpr (requires { Kernel::starts_next(args); }) return Kernel::starts_next(args);
  return false;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    cuda_entry(const __grid_constant__ typename Kernel::Args args) {
  // This grid may have been launched before the last one ended, and the next may be before this
  // one.
  if constexpr (requires { Kernel::prefetch(args); }) Kernel::prefetch(args);
  if (joins_last_grid(args)) {
    gpu::fence();  // grids before that one have ended: it waited for them
  } else {
    gpu::wait_for_last_grid();
  }
  if (!starts_next_itself<Kernel>(args)) gpu::let_next_grid_start();
  Kernel::run(args);
  // What waits for this grid waits for those that it joined; one thread block is enough for that,
  // and the others leave their places.
  if (joins_last_grid(args) && gpu::block_index() == 0) gpu::wait_for_last_grid();
}

struct MakeCudaKernel {
  template <class Kernel>
  CudaKernel operator()(Kernel) const {
    return {reinterpret_cast<const void*>(&cuda_entry<Kernel>), Kernel::kThreads,
            Kernel::kSharedBytes};
  }
};

}  // namespace quire::gpu
