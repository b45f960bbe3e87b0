// SPDX-License-Identifier: Apache-2.0
// Attention of one part by torch: some queries of one sequence, for the query heads of one kv head,
// folded into rows (query * head_group + head), so that K and V are never copied per head.
//
// head_dim and value_dim are padded with zeros to the larger one: torch has fused kernels only for
// equal ones. A key or value that is not finite is left out of what torch sees and put back where
// it belongs: K as a score in the mask, V as a product with its weight.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "backends/dense/batch_parts.h"
#include "backends/torch/sdpa.h"
#include "quire/backend.h"

namespace quire::torch_sdpa {

// The format that torch computes in: that of the queries, if the cache has it and the output is
// rounded once, by torch.
DType compute_type(const AttentionSpec& spec) noexcept;

// How many queries of a sequence make a part.
std::int64_t part_queries(const AttentionSpec& spec, std::int64_t kv_len) noexcept;

// The memory of one thread; dims is max(head_dim, value_dim).
struct PartScratch {
  void* q = nullptr;                          // [rows, dims]
  void* k = nullptr;                          // [keys, dims]
  void* v = nullptr;                          // [keys, dims]
  float* mask = nullptr;                      // [rows, keys]
  float* out = nullptr;                       // [rows, dims]
  float* lse = nullptr;                       // [rows]
  std::int32_t* keys_not_finite = nullptr;    // [keys]
  std::int32_t* values_not_finite = nullptr;  // [keys]
  float* q_row = nullptr;                     // [dims]
  float* kv_row = nullptr;                    // [dims]
  double* gather_seconds = nullptr;           // what the thread gathers is added to; or none
};

std::int64_t part_scratch_bytes(const AttentionSpec& spec, const BatchBounds& bounds) noexcept;
// REQUIRES: `memory` has part_scratch_bytes(), 64-byte aligned.
PartScratch part_scratch_at(void* memory, const AttentionSpec& spec,
                            const BatchBounds& bounds) noexcept;

struct PartCall {
  const AttentionSpec& spec;
  const AttentionParams& params;
  const BatchView& batch;
  const TensorView& q;
  const KvCacheView& cache;
  const AttentionOutput& output;
};

// Writes out and lse of the part. REQUIRES: a SerialRegion. Throws as run().
void attend_part(const PartCall& call, const dense::QueryPart& queries, std::int64_t kv_head,
                 const PartScratch& scratch);

}  // namespace quire::torch_sdpa
