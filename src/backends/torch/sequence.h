// SPDX-License-Identifier: Apache-2.0
// Attention of one sequence by torch: all keys that it sees are gathered once, for all kv heads,
// then its queries are attended to in parts that bound the mask. The query heads of a kv head are
// folded into rows (query * head_group + head).
//
// head_dim and value_dim are padded with zeros to the larger one: torch has fused kernels only for
// equal ones. A key or value that is not finite is left out of what torch sees and put back where
// it belongs: K as a score in the mask, V as a product with its weight.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "backends/torch/sdpa.h"
#include "quire/backend.h"

namespace quire::torch_sdpa {

// The format that torch computes in: that of the queries, if the cache has it and the output is
// rounded once, by torch.
DType compute_type(const AttentionSpec& spec) noexcept;

// The memory of one call. Shapes are those of the bounds; dims is max(head_dim, value_dim).
struct SequenceScratch {
  void* q = nullptr;                   // [num_kv_heads, rows, dims]
  void* k = nullptr;                   // [num_kv_heads, keys, dims]
  void* v = nullptr;                   // [num_kv_heads, keys, dims]
  float* mask = nullptr;               // [1 or num_kv_heads, rows, keys]
  float* out = nullptr;                // [num_kv_heads, rows, dims]
  float* lse = nullptr;                // [num_kv_heads, rows]
  std::int32_t* not_finite = nullptr;  // [2, num_kv_heads, keys]: of K, of V
  std::int64_t* num_found = nullptr;   // [2, num_kv_heads]
  float* q_row = nullptr;              // [dims]
  float* kv_row = nullptr;             // [dims]
};

std::int64_t scratch_bytes(const AttentionSpec& spec, const BatchBounds& bounds) noexcept;
SequenceScratch scratch_at(void* memory, const AttentionSpec& spec,
                           const BatchBounds& bounds) noexcept;

struct SequenceCall {
  const AttentionSpec& spec;
  const AttentionParams& params;
  const BatchView& batch;
  const TensorView& q;
  const KvCacheView& cache;
  const AttentionOutput& output;
  Where where = Where::kCpu;
};

// Writes out and lse of every row of sequence s. REQUIRES: a ThreadLimit. Throws as run().
void attend_sequence(const SequenceCall& call, std::int64_t s, const SequenceScratch& scratch);

}  // namespace quire::torch_sdpa
