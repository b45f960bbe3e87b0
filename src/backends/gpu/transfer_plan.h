// SPDX-License-Identifier: Apache-2.0
// How the host cuts appends and copies of blocks into pieces for their kernels: what can move in
// whole vectors, and how many threads share it. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/transfer_args.h"

namespace quire::gpu {

// Thread blocks for each processor where each does little: so many that the last ones are few.
inline constexpr int kShortBlocksPerProcessor = 64;

// The vectors of an append, or none (num_items is 0) where strides, addresses or formats need
// every element by itself. Fills `num_processors` if there is enough to do.
AppendVectors plan_append(const NewKv& new_kv, const KvCacheView& cache,
                          ArrayView<std::int64_t> slots, int num_processors);

// What whole blocks consist of, if source and destination hold the same bytes in the same order
// and without gaps; otherwise nothing. REQUIRES: layers of one shape and format.
std::vector<CopyPart> plan_copy(std::span<const LayerPair> layers);

}  // namespace quire::gpu
