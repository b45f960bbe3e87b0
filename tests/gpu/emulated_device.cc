// SPDX-License-Identifier: Apache-2.0
#include "emulated_gpu/emulated_gpu.h"
#include "gpu/tested_gpu.h"

namespace quire::testing {

// Long rows: the plan splits them after fewer keys.
TestedGpu make_tested_gpu() {
  return {.reason = "",
          .backend = make_emulated_gpu(),
          .meter = make_emulated_meter(),
          .head_dim = 256,
          .split_kv_len = 600,
          .prefill_len = 20,
          .num_sequences = 12,
          .long_kv_len = 1400,
          .num_long = 5,
          .is_large = false};
}

}  // namespace quire::testing
