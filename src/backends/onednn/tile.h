// SPDX-License-Identifier: Apache-2.0
// Attention of one tile: some queries of one sequence, for the query heads of one kv head, folded
// into rows (query * head_group + head), so that K and V are never copied per head.
//
// Primitives compute the products and the softmax; between them stand scale, softcap, masks, ALiBi
// and bias, after them sinks and lse. How a sequence is cut follows from the spec and its own
// lengths alone, so equal sequences give equal bits in every batch.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "backends/dense/batch_parts.h"
#include "backends/onednn/primitives.h"
#include "quire/backend.h"

namespace quire::onednn {

// How many queries a tile holds at most: a power of two. Scores of a tile are f32, rows x keys.
std::int64_t tile_queries(const AttentionSpec& spec, std::int64_t kv_len) noexcept;

// The keys that a tile reads, and the primitives that it needs: none if it sees no key.
struct TilePlan {
  KeyRange keys;
  TileShape shape;
};
TilePlan plan_tile(const AttentionSpec& spec, DType compute, const SequenceView& sequence,
                   const dense::QueryPart& queries) noexcept;

// The memory of one thread.
struct TileScratch {
  TilePrimitives::Memory memory;
  float* mask_row = nullptr;           // [row_keys]
  std::int32_t* not_finite = nullptr;  // [kChunkKeys]
  float* row_max = nullptr;            // [num_rows] largest score; NaN where a score is NaN
  std::int64_t* top_key = nullptr;     // [num_rows] a key with that score
  float* row_factor = nullptr;         // [num_rows] what the sums of values are multiplied by
  float* value = nullptr;              // [value_dim]
  double* gather_seconds = nullptr;    // what the thread gathers is added to; or none
};

// Bytes that tiles of batches within the bounds take, without the scratchpads of primitives.
std::int64_t tile_scratch_bytes(const AttentionSpec& spec, DType compute,
                                const BatchBounds& bounds) noexcept;
// REQUIRES: `memory` has tile_scratch_bytes(), 64-byte aligned.
TileScratch tile_scratch_at(void* memory, const AttentionSpec& spec, DType compute,
                            const BatchBounds& bounds) noexcept;

struct TileCall {
  const AttentionSpec& spec;
  const AttentionParams& params;
  const BatchView& batch;
  const TensorView& q;
  const KvCacheView& cache;
  const AttentionOutput& output;
};

// Writes out and lse of the tile. Throws dnnl::error. REQUIRES: a SerialRegion; `primitives` has
// the shape of the plan and may be null only if that sees no key.
void attend_tile(const TileCall& call, const dense::QueryPart& queries, std::int64_t kv_head,
                 const TilePlan& plan, const TilePrimitives* primitives, const dnnl::stream& stream,
                 const TileScratch& scratch);

}  // namespace quire::onednn
