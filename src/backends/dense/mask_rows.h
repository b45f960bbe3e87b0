// SPDX-License-Identifier: Apache-2.0
// What is added to the scores of one query: masks, ALiBi and bias as a row of numbers, -inf where
// the query may not see the key. For libraries that take a mask as a tensor, and for scores that
// are computed by one.
//
// Host memory; no exceptions, no allocation; rows may be made from different threads.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "quire/attention_spec.h"

namespace quire::dense {

// One sequence of a call.
struct MaskRows {
  const Mask& mask;
  Alignment alignment;
  const AttentionParams& params;
  SequenceView sequence;
  std::int64_t s = 0;  // its index in the batch

  bool has_tree() const noexcept {
    return alignment == Alignment::kAligned && sequence.tree_bits != nullptr;
  }
  // A row is zero inside of row_range() and -inf outside: no more need be known of it.
  bool is_range() const noexcept {
    return !has_tree() && params.alibi_slopes.empty() && !params.bias.present();
  }
  // All query heads have the same rows.
  bool is_shared_by_heads() const noexcept {
    return params.alibi_slopes.empty() && (!params.bias.present() || params.bias.strides[1] == 0);
  }
};

// The keys of `keys` that query i may see, bias apart; with a tree mask a superset.
KeyRange row_range(const MaskRows& rows, std::int64_t i, KeyRange keys) noexcept;

// out[j - keys.begin] = -alibi + bias of query i and key j, or -inf, for every j of `keys`. A bias
// of a key that the query may not see has no effect, NaN or not.
void fill_mask_row(const MaskRows& rows, std::int64_t q_head, std::int64_t i, KeyRange keys,
                   float* out) noexcept;

}  // namespace quire::dense
