// SPDX-License-Identifier: Apache-2.0
// One row of an output against the reference backend, which gets K and V of the request alone: no
// block, no table and no cache. The limit is that of docs/numerics.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "replay/sequence_model.h"
#include "replay/step_runner.h"

namespace quire::replay {

// Which row of which layer.
struct RowPlace {
  int layer = 0;
  std::int64_t request = 0;
  std::int64_t position = 0;
};

class RowVerifier {
 public:
  // As the engine computes; scale of the scores.
  RowVerifier(const AttentionSpec& spec, float scale);
  ~RowVerifier();

  // `out` [num_q_heads, value_dim] in out_dtype.
  void verify(const RowPlace& place, const TokenChain& chain, const void* out);
  const Verification& result() const noexcept { return result_; }

 private:
  void make_inputs(const RowPlace& place, const TokenChain& chain);
  void run_reference(std::int64_t num_keys);
  void run_plain(std::int64_t num_keys);

  AttentionSpec spec_;
  float scale_;
  RowWriter writer_;
  std::unique_ptr<AttentionBackend> reference_;
  std::vector<std::byte> q_, k_, v_;  // [1, ...], [num_keys, ...] in q_dtype
  std::vector<float> exact_, plain_;  // [num_q_heads, value_dim]
  float max_value_ = 0;               // of |V|
  Verification result_;
};

}  // namespace quire::replay
