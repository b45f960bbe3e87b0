// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/packed_batch.h"

#include "attention/mask.h"
#include "backends/openvino/paged_attention.h"
#include "layout/kv_offset.h"

namespace quire::openvino {
namespace {

bool counts_up(const std::vector<std::int64_t>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

void PackedBatch::reserve(const BatchBounds& bounds) {
  const auto sequences = static_cast<std::size_t>(bounds.max_sequences);
  const auto tokens = static_cast<std::size_t>(bounds.max_tokens);
  const auto blocks = static_cast<std::size_t>(bounds.max_total_kv_len / kBlockSize) + sequences;
  q_rows_.reserve(tokens);
  kv_rows_.reserve(tokens);
  slots_.reserve(tokens);
  kv_lens_.reserve(sequences);
  offsets_.reserve(sequences + 1);
  table_begins_.reserve(sequences + 1);
  table_.reserve(blocks);
  storage_.lens.reserve(sequences);
  storage_.query_begins.reserve(sequences + 1);
  storage_.table_begins.reserve(sequences + 1);
  storage_.table.reserve(blocks);
}

void PackedBatch::add_sequence(const AttentionSpec& spec, const BatchView& batch, std::int64_t s) {
  const SequenceView sequence = sequence_view(batch, s);
  // Blocks that no row sees are left out: they may lie nowhere, and the operation would go over
  // them. Positions matter to it only as differences.
  const KeyRange seen = keys_seen(spec.mask, spec.alignment, sequence, 0, sequence.q_len);
  const std::int64_t first = seen.begin / kBlockSize * kBlockSize;
  for (std::int64_t key = first; key < sequence.kv_len; key += kBlockSize) {
    const std::int64_t slot = key_slot(batch.kv.blocks, kBlockSize, s, key);
    table_.push_back(static_cast<std::int32_t>(slot / kBlockSize));
  }
  table_begins_.push_back(static_cast<std::int32_t>(table_.size()));
  kv_lens_.push_back(static_cast<std::int32_t>(sequence.kv_len - first));
  for (std::int64_t i = 0; i < sequence.q_len; ++i) {
    q_rows_.push_back(batch.queries.begins[s] + i);
  }
  offsets_.push_back(static_cast<std::int32_t>(q_rows_.size()));
}

void PackedBatch::fill(const AttentionSpec& spec, const BatchView& batch) {
  q_rows_.clear();
  kv_rows_.clear();
  kv_lens_.clear();
  table_.clear();
  slots_.clear();
  offsets_.assign(1, 0);
  table_begins_.assign(1, 0);
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    if (batch.queries.ends[s] > batch.queries.begins[s]) add_sequence(spec, batch, s);
  }
  for (std::int64_t i = 0; i < batch.kv.slots.size; ++i) {
    if (batch.kv.slots[i] < 0) continue;
    kv_rows_.push_back(i);
    slots_.push_back(batch.kv.slots[i]);
  }
  q_in_place_ = counts_up(q_rows_);
  kv_in_place_ = counts_up(kv_rows_);
  BatchView packed;
  packed.queries = QueryRanges::packed(offsets_);
  packed.kv.lens = kv_lens_;
  packed.kv.blocks = BlockTables::indexed(table_begins_, table_);
  packed.kv.slots = slots_;
  metadata_ = to_openvino(packed, kBlockSize, storage_);
}

}  // namespace quire::openvino
