// SPDX-License-Identifier: Apache-2.0
// Kernels of src/gpu as device code of an AMD GPU: those for the stored format QUIRE_TEST_STORED
// and rows of QUIRE_TEST_DIMS or of any length, or those that do not depend on a format.
#include "gpu/kernels/kernel_table.h"

namespace quire::gpu {

template <class Kernel>
inline constexpr int kHardwareThreads = Kernel::kThreads / kTeam* kWave;

template <class Kernel>
__attribute__((global)) __attribute__((amdgpu_flat_work_group_size(kHardwareThreads<Kernel>,
                                                                   kHardwareThreads<Kernel>))) void
hip_entry(typename Kernel::Args args) {
  if (takes_part()) Kernel::run(args);
}

struct UseKernel {
  template <class Kernel>
  const void* operator()(Kernel) const {
    return reinterpret_cast<const void*>(&hip_entry<Kernel>);
  }
};

const void* hip_kernel(const KernelId& id) {
#if defined(QUIRE_TEST_DIMS)
  return with_kernel_of_dims<QUIRE_TEST_STORED, QUIRE_TEST_DIMS>(id, UseKernel{});
#elif defined(QUIRE_TEST_STORED)
  return with_stored_kernel<QUIRE_TEST_STORED>(id, UseKernel{});
#else
  return with_common_kernel(id, UseKernel{});
#endif
}

}  // namespace quire::gpu
