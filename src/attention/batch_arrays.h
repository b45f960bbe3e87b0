// SPDX-License-Identifier: Apache-2.0
// The arrays of a batch, by the names that messages give them. In one place, so that no rule about
// all of them leaves one out.
#pragma once

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

}  // namespace quire
