// SPDX-License-Identifier: Apache-2.0
// One sequence out of a batch. Host and device.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "base/host_device.h"
#include "quire/batch.h"

namespace quire {

QUIRE_HOST_DEVICE constexpr SequenceView sequence_view(const BatchView& batch, std::int64_t s) {
  const std::int64_t begin = batch.queries.begins.data[s];
  SequenceView sequence;
  sequence.q_len = batch.queries.ends.data[s] - begin;
  sequence.kv_len = batch.kv.lens.data[s];
  const TreeMask& tree = batch.tree_mask;
  if (tree.begins.size != 0 && tree.begins.data[s] >= 0) {
    sequence.tree_bits = tree.bits.data + tree.begins.data[s];
    if (tree.depths.size != 0) sequence.tree_depths = tree.depths.data + begin;
  }
  return sequence;
}

}  // namespace quire
