// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel_bytes128(const KernelId& id) {
  return with_kernel_of_dims<AnyByte, 128>(id, MakeCudaKernel{});
}

}  // namespace quire::gpu
