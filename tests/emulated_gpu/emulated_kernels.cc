// SPDX-License-Identifier: Apache-2.0
#define QUIRE_GPU_EMULATED
#include "emulated_gpu/emulated_kernels.h"

#include "gpu/emulator/launch.h"
#include "gpu/kernels/kernel_table.h"

namespace quire::testing {
namespace {

struct LaunchKernel {
  const EmulatedLaunch& launch;
  const void* args;

  template <class Kernel>
  void operator()(Kernel) const {
    const typename Kernel::Args copy = *static_cast<const typename Kernel::Args*>(args);
    simt::launch(__PRETTY_FUNCTION__,
                 {.grid = {.x = static_cast<std::uint32_t>(launch.num_blocks)},
                  .block = {.x = Kernel::kThreads},
                  .shared_bytes = Kernel::kSharedBytes,
                  .warp_width = launch.warp_width},
                 [copy, only_prefetch = launch.only_prefetch] {
                   if constexpr (requires { Kernel::prefetch(copy); }) Kernel::prefetch(copy);
                   if (!only_prefetch) Kernel::run(copy);
                 },
                 {.seed = launch.seed});
  }
};

struct SharedBytes {
  template <class Kernel>
  int operator()(Kernel) const {
    return Kernel::kSharedBytes;
  }
};

template <class Use>
auto with_kernel(const gpu::KernelId& kernel, const Use& use) {
  if (!gpu::is_by_format(kernel.kind)) return gpu::with_common_kernel(kernel, use);
  switch (kernel.stored) {
    case DType::kF16:
      return gpu::with_stored_kernel<Float16>(kernel, use);
    case DType::kBF16:
      return gpu::with_stored_kernel<BFloat16>(kernel, use);
    default:
      return gpu::with_stored_kernel<gpu::AnyByte>(kernel, use);
  }
}

}  // namespace

void launch_emulated(const gpu::KernelId& kernel, const EmulatedLaunch& launch, const void* args) {
  with_kernel(kernel, LaunchKernel{launch, args});
}

int emulated_shared_bytes(const gpu::KernelId& kernel) {
  return with_kernel(kernel, SharedBytes{});
}

}  // namespace quire::testing
