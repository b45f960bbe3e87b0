// SPDX-License-Identifier: Apache-2.0
#include "base/hidden_tiles.h"

#include <cstdlib>

#include "base/cpu_features.h"

namespace quire {

bool keep_onednn_from_hidden_tiles() {
  static const bool kDid = [] {
    constexpr const char* kVariable = "ONEDNN_MAX_CPU_ISA";
    if (!detect_cpu_features().amx_sizes_hidden || std::getenv(kVariable) != nullptr) return false;
    return setenv(kVariable, "AVX512_CORE_BF16", 0) == 0;
  }();
  return kDid;
}

}  // namespace quire
