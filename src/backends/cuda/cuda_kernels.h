// SPDX-License-Identifier: Apache-2.0
// Between the host code of the CUDA backend and its kernels, which nvcc compiles.
#pragma once

#include "backends/gpu/gpu_runtime.h"

namespace quire::gpu {

struct CudaKernel {
  const void* function;  // takes the kernel's argument struct by value
  int num_threads;
  int shared_bytes;
};

CudaKernel cuda_kernel(const KernelId& id);

// Those for a stored format, or for all of 8 bits and rows of so many dims, each compiled on its
// own.
CudaKernel cuda_kernel_bf16(const KernelId& id);
CudaKernel cuda_kernel_f16(const KernelId& id);
CudaKernel cuda_kernel_bytes64(const KernelId& id);
CudaKernel cuda_kernel_bytes128(const KernelId& id);
CudaKernel cuda_kernel_bytes256(const KernelId& id);

}  // namespace quire::gpu
