// SPDX-License-Identifier: Apache-2.0
#include "conformance/batch_arrays.h"

#include <limits>

#include "conformance/index.h"

namespace quire::conformance {

BatchArrays::BatchArrays(DeviceMemory& memory, const Arrangement& a, bool with_slots,
                         std::int64_t max_tokens, bool on_device)
    : kind_(a.kind),
      row_stride_(a.row_stride),
      offsets_(memory, a.q_offsets, on_device),
      q_begins_(memory, a.q_begins, on_device),
      q_ends_(memory, a.q_ends, on_device),
      kv_lens_(memory, a.kv_lens, on_device),
      indices_(memory, a.indices, on_device),
      begins_(memory, a.begins, on_device),
      rows_(memory, a.rows, on_device),
      tree_bits_(memory, a.tree_bits, on_device),
      tree_begins_(memory, a.tree_begins, on_device) {
  if (with_slots) slots_ = ArrayImage<std::int64_t>(memory, a.slots, on_device);
  if (a.depths.empty()) return;
  std::vector<std::int32_t> depths = a.depths;
  depths.resize(at(max_tokens), std::numeric_limits<std::int32_t>::min());
  depths_ = ArrayImage<std::int32_t>(memory, depths, on_device);
}

BatchView BatchArrays::view() const {
  BatchView batch;
  batch.queries = offsets_.view().empty() ? QueryRanges{q_begins_.view(), q_ends_.view()}
                                          : QueryRanges::packed(offsets_.view());
  batch.kv.lens = kv_lens_.view();
  switch (kind_) {
    case BlockTables::Kind::kPadded:
      batch.kv.blocks = BlockTables::padded(indices_.view(), row_stride_);
      break;
    case BlockTables::Kind::kIndexed:
      batch.kv.blocks = BlockTables::indexed(begins_.view(), indices_.view());
      break;
    case BlockTables::Kind::kRagged:
      batch.kv.blocks = BlockTables::ragged(rows_.view());
      break;
  }
  batch.kv.slots = slots_.view();
  batch.tree_mask = {tree_bits_.view(), tree_begins_.view(), depths_.view()};
  return batch;
}

std::optional<std::string> BatchArrays::changed() const {
  const bool changed = offsets_.is_changed() || q_begins_.is_changed() || q_ends_.is_changed() ||
                       kv_lens_.is_changed() || indices_.is_changed() || begins_.is_changed() ||
                       rows_.is_changed() || slots_.is_changed() || tree_bits_.is_changed() ||
                       tree_begins_.is_changed() || depths_.is_changed();
  if (changed) return "metadata in device memory was written";
  return std::nullopt;
}

}  // namespace quire::conformance
