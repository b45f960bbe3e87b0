// SPDX-License-Identifier: Apache-2.0
// What a call writes lies apart from all that it reads: no byte is shared, however the tensors lie
// in each other (layout/byte_lattice.h). Part of validate.h, under the same rules.
#pragma once

#include <span>

#include "quire/backend.h"
#include "quire/batch.h"
#include "quire/prepared_batch.h"

namespace quire {

// REQUIRES: all of it has been validated by itself. `out` may be q itself, element for element: a
// row and head of it is written when that row and head of q has been read. Of q, out and lse only
// the rows that the batch needs are compared; the cache counts as a whole, blocks of no table too.
void validate_attend_apart(const BatchFacts& facts, const BatchView& batch,
                           const AttentionParams& params, const TensorView& q,
                           const KvSource& source, const AttentionOutput& output);

void validate_merge_apart(std::span<const Partial> partials, const ArrayView<float>& sinks,
                          const AttentionOutput& output);

}  // namespace quire
