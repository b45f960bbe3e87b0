// SPDX-License-Identifier: Apache-2.0
// oneDNN calls of this thread run on this thread alone while a SerialRegion lives: quire's own pool
// is all the parallelism there is, and the OpenMP setting of the caller comes back afterwards.
#pragma once

#include <oneapi/dnnl/dnnl_config.h>

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int num_threads);
}
#elif DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "oneDNN must have been built with OpenMP or without threads"
#endif

namespace quire::onednn {

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
class SerialRegion {
 public:
  // Both settings belong to the calling thread.
  SerialRegion() noexcept : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SerialRegion() { omp_set_num_threads(before_); }
  SerialRegion(const SerialRegion&) = delete;
  SerialRegion& operator=(const SerialRegion&) = delete;

 private:
  int before_;
};
#else
class SerialRegion {
 public:
  SerialRegion() noexcept {}
  ~SerialRegion() {}
  SerialRegion(const SerialRegion&) = delete;
  SerialRegion& operator=(const SerialRegion&) = delete;
};
#endif

}  // namespace quire::onednn
