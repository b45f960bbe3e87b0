// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel_f16(const KernelId& id) {
  return with_stored_kernel<Float16>(id, MakeCudaKernel{});
}

}  // namespace quire::gpu
