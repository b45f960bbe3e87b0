// SPDX-License-Identifier: Apache-2.0
// The features of this machine, and those that the program emulates. Takes the place of
// src/base/cpu_features.cc, whose own function is compiled under another name.
#include "base/cpu_features.h"

namespace quire {

CpuFeatures detect_real_cpu_features();

CpuFeatures detect_cpu_features() {
  CpuFeatures features = detect_real_cpu_features();
  if (features.avx512 && features.avx512_vbmi) {
    features.avx512_bf16 = true;
    features.avx512_vnni = true;
    features.avx512_fp16 = true;
    features.amx_bf16 = true;
  }
  // What this machine does is what every other test sees.
  features.drops_prefetches = !features.drops_prefetches;
  return features;
}

}  // namespace quire
