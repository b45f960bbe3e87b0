// SPDX-License-Identifier: Apache-2.0
// The arrays of a batch, by the names that messages give them. In one place, so that no rule about
// all of them leaves one out.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/batch.h"

namespace quire {

// use(name, array) for each, the absent ones of size 0 too.
template <class Use>
void for_each_array(const BatchView& batch, const Use& use) {
  use("queries.begins", batch.queries.begins);
  use("queries.ends", batch.queries.ends);
  use("kv.lens", batch.kv.lens);
  use("kv.blocks.indices", batch.kv.blocks.indices);
  use("kv.blocks.begins", batch.kv.blocks.begins);
  use("kv.blocks.rows", batch.kv.blocks.rows);
  use("kv.slots", batch.kv.slots);
  use("tree_mask.begins", batch.tree_mask.begins);
  use("tree_mask.bits", batch.tree_mask.bits);
  use("tree_mask.depths", batch.tree_mask.depths);
}

// Copies of them, for a batch whose own lie elsewhere.
struct CopiedArrays {
  std::vector<std::int32_t> begins, ends, lens, indices, table_begins, depths;
  std::vector<std::int64_t> rows, slots, tree_begins;
  std::vector<std::uint8_t> tree_bits;
};
// The batch over `to`, on the host; copy(array, vector) fills a vector.
template <class Copy>
BatchView copy_arrays(const BatchView& batch, CopiedArrays& to, const Copy& copy) {
  const auto held = [&copy](const auto& array, auto& vector) {
    copy(array, vector);
    return ArrayView(vector);
  };
  BatchView view = batch;
  view.queries.begins = held(batch.queries.begins, to.begins);
  view.queries.ends = held(batch.queries.ends, to.ends);
  view.kv.lens = held(batch.kv.lens, to.lens);
  view.kv.blocks.indices = held(batch.kv.blocks.indices, to.indices);
  view.kv.blocks.begins = held(batch.kv.blocks.begins, to.table_begins);
  view.kv.blocks.rows = held(batch.kv.blocks.rows, to.rows);
  view.kv.slots = held(batch.kv.slots, to.slots);
  view.tree_mask.begins = held(batch.tree_mask.begins, to.tree_begins);
  view.tree_mask.bits = held(batch.tree_mask.bits, to.tree_bits);
  view.tree_mask.depths = held(batch.tree_mask.depths, to.depths);
  return view;
}

}  // namespace quire
