// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel_i8(const KernelId& id) {
  return with_stored_kernel<std::int8_t>(id, MakeCudaKernel{});
}

}  // namespace quire::gpu
