// SPDX-License-Identifier: Apache-2.0
#include "conformance/cost.h"

namespace quire::conformance {

Cost cost_of(const Problem& p) {
  const AttentionSpec& spec = p.spec;
  std::int64_t pairs = 0;  // of a query and a key that it sees
  std::int64_t keys = 0;
  for (std::int64_t s = 0; s < std::ssize(p.sequences); ++s) {
    const ProblemSequence& sequence = p.sequences[static_cast<std::size_t>(s)];
    for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
      std::int64_t queries = 0;
      for (std::int64_t i = 0; i < sequence.q_len; ++i) queries += p.is_visible(s, i, j) ? 1 : 0;
      pairs += queries;
      keys += queries > 0 ? 1 : 0;
    }
  }
  const std::int64_t stored_dims = spec.head_dim + (spec.kv.v_in_k ? 0 : spec.value_dim);
  const bool has_scales = spec.kv.scales == ScaleGranularity::kPerTokenHead;
  const std::int64_t scale_bytes = has_scales ? 4 * (spec.kv.v_in_k ? 1 : 2) : 0;
  const std::int64_t key_bytes = stored_dims * dtype_bytes(spec.kv.dtype) + scale_bytes;
  Cost cost;
  cost.flops = 2 * pairs * spec.num_q_heads * (spec.head_dim + spec.value_dim);
  cost.kv_bytes = keys * spec.num_kv_heads * key_bytes;
  cost.io_bytes =
      p.num_tokens * spec.num_q_heads *
      (spec.head_dim * dtype_bytes(spec.q_dtype) + spec.value_dim * dtype_bytes(spec.out_dtype));
  return cost;
}

}  // namespace quire::conformance
