// SPDX-License-Identifier: Apache-2.0
// What a case asks of a machine, whatever runs it: the denominators of benchmarks.
#pragma once

#include <cstdint>

#include "conformance/problem.h"

namespace quire::conformance {

struct Cost {
  std::int64_t flops = 0;     // of QK and PV, over the keys that queries see
  std::int64_t kv_bytes = 0;  // of K and V that some query of a sequence sees, once per sequence
  std::int64_t io_bytes = 0;  // of Q and the output
};

Cost cost_of(const Problem& problem);

}  // namespace quire::conformance
