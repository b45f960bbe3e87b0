// SPDX-License-Identifier: Apache-2.0
// Steps that the converters to and from client metadata share.
#pragma once

#include <cstdint>

#include "quire/batch.h"
#include "quire/batch_convert.h"

namespace quire {

// Query ranges as one array of offsets from 0. Throws where rows are left out. Ranges without rows
// may lie anywhere. REQUIRES: check_structure.
ArrayView<std::int32_t> pack_queries(const char* client, const BatchView& batch,
                                     BatchStorage& storage);

// 0, 1, .. num_sequences: one query per sequence.
ArrayView<std::int32_t> one_query_each(std::int64_t num_sequences, BatchStorage& storage);

// Throws if the batch has a tree mask or depths. REQUIRES: check_structure.
void refuse_tree_mask(const char* client, const BatchView& batch);

}  // namespace quire
