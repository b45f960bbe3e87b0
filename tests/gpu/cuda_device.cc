// SPDX-License-Identifier: Apache-2.0
#include "gpu/tested_gpu.h"
#include "quire/error.h"
#include "quire/registry.h"
#include "registry/plugin.h"

namespace quire::testing {

TestedGpu make_tested_gpu() {
  TestedGpu gpu;
  const Availability availability = probe_plugin("cuda");
  if (!availability.available) {
    gpu.reason = "no cuda here";
    for (const std::string& reason : availability.reasons) gpu.reason += ": " + reason;
    return gpu;
  }
  gpu.backend = make_backend("cuda");
  gpu.meter = make_plugin_meter("cuda");
  if (gpu.meter == nullptr) throw Error(ErrorCode::kInternal, "the plug-in offers no meter");
  gpu.head_dim = 128;
  gpu.split_kv_len = 3000;
  gpu.prefill_len = 200;
  gpu.num_sequences = 2500;
  gpu.long_kv_len = 8192;
  gpu.num_long = 120;
  gpu.is_large = true;
  return gpu;
}

}  // namespace quire::testing
