// SPDX-License-Identifier: Apache-2.0
#include "base/hidden_tiles.h"

#include <cstdlib>

#include "base/cpu_features.h"

namespace quire {

bool keep_onednn_from_hidden_tiles() {
  static const bool kDid = [] {
    const CpuFeatures features = detect_cpu_features();
    constexpr const char* kVariable = "ONEDNN_MAX_CPU_ISA";
    if (!features.amx_sizes_hidden || std::getenv(kVariable) != nullptr ||
        std::getenv("DNNL_MAX_CPU_ISA") != nullptr) {
      return false;
    }
    const char* limit = features.avx512_fp16 ? "AVX512_CORE_FP16" : "AVX512_CORE_BF16";
    return setenv(kVariable, limit, 0) == 0;
  }();
  return kDid;
}

}  // namespace quire
