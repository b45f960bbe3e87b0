// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel_bf16(const KernelId& id) {
  return with_stored_kernel<BFloat16>(id, MakeCudaKernel{});
}

}  // namespace quire::gpu
