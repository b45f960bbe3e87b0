// SPDX-License-Identifier: Apache-2.0
// The kernels of src/gpu that do not depend on the stored format, for CUDA.
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel(const KernelId& id) {
  if (!is_by_format(id.kind)) {
    return with_common_kernel(id, MakeCudaKernel{});
  }
  switch (id.stored) {
    case DType::kF16:
      return cuda_kernel_f16(id);
    case DType::kF8E4M3:
      return cuda_kernel_f8e4m3(id);
    case DType::kF8E5M2:
      return cuda_kernel_f8e5m2(id);
    case DType::kI8:
      return cuda_kernel_i8(id);
    default:
      return cuda_kernel_bf16(id);
  }
}

}  // namespace quire::gpu
