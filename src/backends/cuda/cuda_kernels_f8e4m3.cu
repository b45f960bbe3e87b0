// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel_f8e4m3(const KernelId& id) {
  return with_stored_kernel<Float8E4M3>(id, MakeCudaKernel{});
}

}  // namespace quire::gpu
