// SPDX-License-Identifier: Apache-2.0
// The clients whose metadata has block tables: vLLM, FlashInfer, OpenVINO.
#include "quire/batch_convert.h"

#include <algorithm>

#include "attention/batch_packing.h"
#include "attention/batch_structure.h"
#include "attention/mask.h"
#include "layout/kv_offset.h"

namespace quire {
namespace {

// What every client here shares. Returns the number of query rows.
std::int64_t check_expressible(const char* client, const BatchView& batch, int block_size) {
  const std::int64_t num_rows = check_structure(batch);
  require(batch.kv.blocks.kind != BlockTables::Kind::kRagged, client,
          " metadata has block tables: ragged rows have none, sequences: ", batch.num_sequences());
  check_table_lengths(batch, block_size);
  refuse_tree_mask(client, batch);
  return num_rows;
}

// Where a client that names no slots stores query i of sequence s: at the query's own position, or
// nowhere if that is negative. REQUIRES: check_structure, check_table_lengths.
std::int64_t derived_slot(const BatchView& batch, int block_size, std::int64_t s, std::int64_t i) {
  const std::int64_t key = batch.kv.lens[s] - q_len_of(batch.queries, s) + i;
  if (key < 0) return -1;
  const std::int64_t slot = key_slot(batch.kv.blocks, block_size, s, key);
  // A released block may be unseen, but it cannot be stored to.
  require(slot >= 0, "sequence ", s, ": new key ", key, " lies in block ",
          floor_div(slot, block_size), ", must be >= 0");
  return slot;
}

// REQUIRES: packed queries.
ArrayView<std::int64_t> derive_slots(const BatchView& batch, int block_size,
                                     BatchStorage& storage) {
  const std::int64_t num_sequences = batch.num_sequences();
  const std::int64_t num_rows = num_sequences == 0 ? 0 : batch.queries.ends[num_sequences - 1];
  std::int64_t* slots = resize_array(storage.slots, num_rows);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const std::int64_t q_len = q_len_of(batch.queries, s);
    for (std::int64_t i = 0; i < q_len; ++i) *slots++ = derived_slot(batch, block_size, s, i);
  }
  return storage.slots;
}

// Throws unless from_x would derive the slots of the batch. REQUIRES: queries that pack.
void require_derived_slots(const char* client, const BatchView& batch, int block_size) {
  const ArrayView<std::int64_t>& slots = batch.kv.slots;
  std::int64_t row = 0;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const std::int64_t q_len = q_len_of(batch.queries, s);
    for (std::int64_t i = 0; i < q_len; ++i, ++row) {
      require(row < slots.size, client, " stores every new token: sequence ", s, ": query ", i,
              " has row ", row, ", slots are ", slots.size);
      const std::int64_t derived = derived_slot(batch, block_size, s, i);
      require(slots[row] == derived, client, " metadata carries no slots: sequence ", s, ": query ",
              i, " has slot ", slots[row], ", its position implies ", derived);
    }
  }
  for (; row < slots.size; ++row) {
    require(slots[row] == -1, client, " metadata carries no slots: row ", row,
            " of no query has slot ", slots[row], ", must be -1");
  }
}

// The blocks that hold keys and no others, sequence after sequence.
BlockTables flatten_tables(const BatchView& batch, int block_size, BatchStorage& storage) {
  const std::int64_t num_sequences = batch.num_sequences();
  const BlockTables& tables = batch.kv.blocks;
  std::int32_t* begins = resize_array(storage.table_begins, num_sequences + 1);
  std::int64_t total = 0;
  bool same = tables.kind == BlockTables::Kind::kIndexed;
  for (std::int64_t s = 0; s <= num_sequences; ++s) {
    require(total <= kInt32Max, "block tables: entries before sequence ", s, " are ", total,
            ", must be <= ", kInt32Max);
    begins[s] = narrow(total);
    same = same && tables.begins[s] == begins[s];
    if (s < num_sequences) total += num_blocks_of(batch.kv.lens[s], block_size);
  }
  if (same) return BlockTables::indexed(tables.begins, tables.indices.subview(0, total));
  std::int32_t* indices = resize_array(storage.table, total);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    std::copy_n(table_row(tables, s).blocks, begins[s + 1] - begins[s], indices + begins[s]);
  }
  return BlockTables::indexed(storage.table_begins, storage.table);
}

// Rows of equal length, unused entries 0.
BlockTables pad_tables(const BatchView& batch, int block_size, BatchStorage& storage) {
  const std::int64_t num_sequences = batch.num_sequences();
  std::int64_t stride = 0;
  for (const std::int32_t kv_len : batch.kv.lens) {
    stride = std::max(stride, num_blocks_of(kv_len, block_size));
  }
  std::int32_t* indices = resize_array(storage.table, num_sequences * stride);
  for (std::int64_t s = 0; s < num_sequences; ++s, indices += stride) {
    const std::int64_t used = num_blocks_of(batch.kv.lens[s], block_size);
    std::copy_n(table_row(batch.kv.blocks, s).blocks, used, indices);
    std::fill_n(indices + used, stride - used, 0);
  }
  return BlockTables::padded(storage.table, stride);
}

// Exactly the entries that `begins` reaches; clients may bring a larger buffer.
BlockTables indexed_tables(const char* name, const ArrayView<std::int32_t>& begins,
                           const ArrayView<std::int32_t>& indices, std::int64_t size) {
  require_host_array(name, indices);
  require(indices.size >= size, name, ": size is ", indices.size, ", must be >= ", size);
  return BlockTables::indexed(begins, indices.subview(0, size));
}

}  // namespace

BatchView from_vllm(const VllmMetadata& metadata, int block_size) {
  require_host_array("seq_lens", metadata.seq_lens);
  require_offsets("query_start_loc", metadata.query_start_loc, metadata.seq_lens.size);
  require_slots("slot_mapping", metadata.slot_mapping);
  BatchView batch;
  batch.queries = QueryRanges::packed(metadata.query_start_loc);
  batch.kv.lens = metadata.seq_lens;
  batch.kv.blocks = BlockTables::padded(metadata.block_table, metadata.block_table_stride);
  batch.kv.slots = metadata.slot_mapping;
  check_structure(batch);
  check_table_lengths(batch, block_size);
  batch.kv.blocks.indices =
      metadata.block_table.subview(0, batch.num_sequences() * metadata.block_table_stride);
  return batch;
}

VllmMetadata to_vllm(const BatchView& batch, int block_size, BatchStorage& storage) {
  check_expressible("vLLM", batch, block_size);
  VllmMetadata metadata;
  metadata.query_start_loc = pack_queries("vLLM", batch, storage);
  metadata.seq_lens = batch.kv.lens;
  const bool padded = batch.kv.blocks.kind == BlockTables::Kind::kPadded;
  const BlockTables tables = padded ? batch.kv.blocks : pad_tables(batch, block_size, storage);
  metadata.block_table = tables.indices;
  metadata.block_table_stride = tables.row_stride;
  metadata.slot_mapping = batch.kv.slots;
  return metadata;
}

BatchView from_flashinfer(const FlashInferMetadata& metadata, int block_size, NewKvRows new_kv,
                          BatchStorage& storage) {
  require(block_size >= 1, "block_size is ", block_size, ", must be >= 1");
  require_host_array("last_page_len", metadata.last_page_len);
  const std::int64_t num_sequences = metadata.last_page_len.size;
  const std::int64_t num_blocks = require_offsets("kv_indptr", metadata.kv_indptr, num_sequences);
  const bool one_each = metadata.qo_indptr.empty();
  if (!one_each) require_offsets("qo_indptr", metadata.qo_indptr, num_sequences);

  std::int32_t* lens = resize_array(storage.lens, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const std::int64_t own_blocks = std::int64_t{metadata.kv_indptr[s + 1]} - metadata.kv_indptr[s];
    const std::int32_t last = metadata.last_page_len[s];
    require(own_blocks == 0 || (last >= 1 && last <= block_size), "sequence ", s,
            ": last_page_len is ", last, ", must be in 1..", block_size);
    const std::int64_t kv_len = own_blocks == 0 ? 0 : (own_blocks - 1) * block_size + last;
    require(kv_len <= kInt32Max, "sequence ", s, ": kv_len is ", kv_len,
            ", must be <= ", kInt32Max);
    lens[s] = narrow(kv_len);
  }
  BatchView batch;
  batch.queries =
      QueryRanges::packed(one_each ? one_query_each(num_sequences, storage) : metadata.qo_indptr);
  batch.kv.lens = storage.lens;
  batch.kv.blocks =
      indexed_tables("kv_indices", metadata.kv_indptr, metadata.kv_indices, num_blocks);
  check_structure(batch);
  if (new_kv == NewKvRows::kQueries) batch.kv.slots = derive_slots(batch, block_size, storage);
  return batch;
}

FlashInferMetadata to_flashinfer(const BatchView& batch, int block_size, BatchStorage& storage) {
  check_expressible("FlashInfer", batch, block_size);
  FlashInferMetadata metadata;
  metadata.qo_indptr = pack_queries("FlashInfer", batch, storage);
  if (!batch.kv.slots.empty()) require_derived_slots("FlashInfer", batch, block_size);
  const BlockTables tables = flatten_tables(batch, block_size, storage);
  metadata.kv_indptr = tables.begins;
  metadata.kv_indices = tables.indices;
  std::int32_t* last_page_len = resize_array(storage.lens, batch.num_sequences());
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const std::int32_t kv_len = batch.kv.lens[s];
    last_page_len[s] = kv_len == 0 ? 0 : (kv_len - 1) % block_size + 1;
  }
  metadata.last_page_len = storage.lens;
  return metadata;
}

BatchView from_openvino(const OpenVinoMetadata& metadata, int block_size, BatchStorage& storage) {
  require_host_array("past_lens", metadata.past_lens);
  const std::int64_t num_sequences = metadata.past_lens.size;
  require_offsets("subsequence_begins", metadata.subsequence_begins, num_sequences);
  const std::int64_t num_blocks =
      require_offsets("block_indices_begins", metadata.block_indices_begins, num_sequences);
  BatchView batch;
  batch.queries = QueryRanges::packed(metadata.subsequence_begins);

  std::int32_t* lens = resize_array(storage.lens, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    require(metadata.past_lens[s] >= 0, "sequence ", s, ": past_len is ", metadata.past_lens[s],
            ", must be >= 0");
    const std::int64_t kv_len = metadata.past_lens[s] + q_len_of(batch.queries, s);
    require(kv_len <= metadata.max_context_len, "sequence ", s, ": past_len + q_len is ", kv_len,
            ", must be <= max_context_len ", metadata.max_context_len);
    lens[s] = narrow(kv_len);
  }
  batch.kv.lens = storage.lens;
  batch.kv.blocks = indexed_tables("block_indices", metadata.block_indices_begins,
                                   metadata.block_indices, num_blocks);
  check_structure(batch);
  check_table_lengths(batch, block_size);
  batch.kv.slots = derive_slots(batch, block_size, storage);
  return batch;
}

OpenVinoMetadata to_openvino(const BatchView& batch, int block_size, BatchStorage& storage) {
  check_expressible("OpenVINO", batch, block_size);
  OpenVinoMetadata metadata;
  metadata.subsequence_begins = pack_queries("OpenVINO", batch, storage);
  std::int32_t* past_lens = resize_array(storage.lens, batch.num_sequences());
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const std::int64_t q_len = q_len_of(batch.queries, s);
    require(q_len <= batch.kv.lens[s], "OpenVINO stores every new token: sequence ", s,
            ": q_len is ", q_len, ", must be <= kv_len ", batch.kv.lens[s]);
    past_lens[s] = narrow(batch.kv.lens[s] - q_len);
    metadata.max_context_len = std::max(metadata.max_context_len, batch.kv.lens[s]);
  }
  require_derived_slots("OpenVINO", batch, block_size);
  metadata.past_lens = storage.lens;
  const BlockTables tables = flatten_tables(batch, block_size, storage);
  metadata.block_indices = tables.indices;
  metadata.block_indices_begins = tables.begins;
  return metadata;
}

}  // namespace quire
