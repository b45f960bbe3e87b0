// SPDX-License-Identifier: Apache-2.0
// The public merge: attention over the union of disjoint key sets, from (out, lse) of each.
#pragma once

#include <cstdint>
#include <span>

#include "quire/backend.h"

namespace quire::cpu {

// One row of one head.
void merge_partials_row(std::span<const Partial> partials, ArrayView<float> sinks,
                        const AttentionOutput& output, std::int64_t row,
                        std::int64_t head) noexcept;

}  // namespace quire::cpu
