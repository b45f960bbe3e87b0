// SPDX-License-Identifier: Apache-2.0
// The kernels of src/gpu that do not depend on the stored format, for CUDA.
#include "backends/cuda/cuda_entry.h"

namespace quire::gpu {

CudaKernel cuda_kernel(const KernelId& id) {
  if (!is_by_format(id.kind)) {
    return with_common_kernel(id, MakeCudaKernel{});
  }
  if (id.stored == DType::kBF16) return cuda_kernel_bf16(id);
  if (id.stored == DType::kF16) return cuda_kernel_f16(id);
  switch (id.dims) {
    case 64:
      return cuda_kernel_bytes64(id);
    case 128:
      return cuda_kernel_bytes128(id);
    default:
      return cuda_kernel_bytes256(id);
  }
}

}  // namespace quire::gpu
