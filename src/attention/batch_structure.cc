// SPDX-License-Identifier: Apache-2.0
#include "attention/batch_structure.h"

#include "attention/mask.h"

namespace quire {
namespace {

void check_queries(const QueryRanges& queries) {
  require_host_array("query begins", queries.begins);
  require_host_array("query ends", queries.ends);
  const std::int64_t num_sequences = queries.num_sequences();
  require(num_sequences <= kInt32Max, "query begins: size is ", num_sequences,
          ", must be <= ", kInt32Max);
  require_size("query ends", queries.ends, num_sequences);
  std::int32_t previous = 0;
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    require(queries.begins[s] >= previous, "sequence ", s, ": query rows begin at ",
            queries.begins[s], ", must be >= ", previous);
    require(queries.ends[s] >= queries.begins[s], "sequence ", s, ": query rows end at ",
            queries.ends[s], ", must be >= ", queries.begins[s]);
    previous = queries.ends[s];
  }
}

void check_padded(const BlockTables& tables, std::int64_t num_sequences) {
  require(tables.row_stride >= 0, "block table: row stride is ", tables.row_stride,
          ", must be >= 0");
  // Divided, not multiplied: the stride may be any 64-bit number.
  require(num_sequences == 0 || tables.row_stride <= tables.indices.size / num_sequences,
          "block table: ", num_sequences, " rows of ", tables.row_stride,
          " entries do not fit, size is ", tables.indices.size);
}

void check_indexed(const BlockTables& tables, std::int64_t num_sequences) {
  require_size("block table begins", tables.begins, num_sequences + 1);
  std::int32_t previous = 0;
  for (std::int64_t s = 0; s <= num_sequences; ++s) {
    require(tables.begins[s] >= previous, "block table begins: entry ", s, " is ", tables.begins[s],
            ", must be >= ", previous);
    previous = tables.begins[s];
  }
  require(previous <= tables.indices.size, "block table begins: entry ", num_sequences, " is ",
          previous, ", must be <= ", tables.indices.size);
}

void check_ragged(const KvSide& kv, std::int64_t num_sequences) {
  require_size("ragged rows", kv.blocks.rows, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const std::int64_t limit = std::numeric_limits<std::int64_t>::max() - kv.lens[s];
    require(kv.blocks.rows[s] >= 0 && kv.blocks.rows[s] <= limit, "sequence ", s,
            ": first ragged row is ", kv.blocks.rows[s], ", must be in 0..", limit);
  }
}

void check_kv(const KvSide& kv, std::int64_t num_sequences) {
  require_host_array("kv lens", kv.lens);
  require_host_array("block table", kv.blocks.indices);
  require_host_array("block table begins", kv.blocks.begins);
  require_host_array("ragged rows", kv.blocks.rows);
  require_size("kv lens", kv.lens, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    require(kv.lens[s] >= 0, "sequence ", s, ": kv_len is ", kv.lens[s], ", must be >= 0");
  }
  switch (kv.blocks.kind) {
    case BlockTables::Kind::kPadded:
      return check_padded(kv.blocks, num_sequences);
    case BlockTables::Kind::kIndexed:
      return check_indexed(kv.blocks, num_sequences);
    case BlockTables::Kind::kRagged:
      return check_ragged(kv, num_sequences);
  }
  fail(ErrorCode::kInvalidArgument, "block tables: kind is ", static_cast<int>(kv.blocks.kind));
}

void check_tree_mask(const TreeMask& tree, const QueryRanges& queries, std::int64_t num_rows) {
  require_host_array("tree mask bits", tree.bits);
  require_host_array("tree mask begins", tree.begins);
  require_host_array("tree depths", tree.depths);
  if (!tree.present()) {
    require(tree.bits.empty(), "tree mask bits: given without begins, size is ", tree.bits.size);
    require(tree.depths.empty(), "tree depths: given without begins, size is ", tree.depths.size);
    return;
  }
  require(tree.depths.empty() || tree.depths.size >= num_rows, "tree depths: size is ",
          tree.depths.size, ", must be >= ", num_rows);
  require_size("tree mask begins", tree.begins, queries.num_sequences());
  for (std::int64_t s = 0; s < queries.num_sequences(); ++s) {
    const std::int64_t begin = tree.begins[s];
    const std::int64_t last =
        begin == -1 ? -1 : tree.bits.size - tree_mask_bytes(q_len_of(queries, s));
    require(begin >= -1 && begin <= last, "sequence ", s, ": tree mask begins at byte ", begin,
            ", must be -1 or in 0..", last);
  }
}

}  // namespace

std::int64_t require_offsets(const char* name, const ArrayView<std::int32_t>& offsets,
                             std::int64_t num_sequences) {
  require_host_array(name, offsets);
  require(num_sequences <= kInt32Max, name, ": sequences are ", num_sequences,
          ", must be <= ", kInt32Max);
  require_size(name, offsets, num_sequences + 1);
  require(offsets[0] == 0, name, ": entry 0 is ", offsets[0], ", must be 0");
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    require(offsets[s + 1] >= offsets[s], name, ": entry ", s + 1, " is ", offsets[s + 1],
            ", must be >= ", offsets[s]);
  }
  return offsets[num_sequences];
}

void require_slots(const char* name, const ArrayView<std::int64_t>& slots) {
  require_host_array(name, slots);
  for (std::int64_t i = 0; i < slots.size; ++i) {
    require(slots[i] >= -1, name, ": entry ", i, " is ", slots[i], ", must be >= -1");
  }
}

std::int64_t check_structure(const BatchView& batch) {
  check_queries(batch.queries);
  const std::int64_t num_sequences = batch.num_sequences();
  const std::int64_t num_rows = num_sequences == 0 ? 0 : batch.queries.ends[num_sequences - 1];
  check_kv(batch.kv, num_sequences);
  require_slots("slots", batch.kv.slots);
  check_tree_mask(batch.tree_mask, batch.queries, num_rows);
  return num_rows;
}

void check_table_lengths(const BatchView& batch, int block_size) {
  require(block_size >= 1, "block_size is ", block_size, ", must be >= 1");
  const BlockTables& tables = batch.kv.blocks;
  if (tables.kind == BlockTables::Kind::kRagged) {
    require(block_size == 1, "ragged rows: block_size is ", block_size, ", must be 1");
    return;
  }
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const std::int64_t needed = num_blocks_of(batch.kv.lens[s], block_size);
    const std::int64_t size = table_row(tables, s).size;
    require(needed <= size, "sequence ", s, ": kv_len ", batch.kv.lens[s], " with block_size ",
            block_size, " needs table entries: ", needed, ", has ", size);
  }
}

TableRow table_row(const BlockTables& tables, std::int64_t s) {
  if (tables.kind == BlockTables::Kind::kPadded) {
    return {tables.indices.data + s * tables.row_stride, tables.row_stride};
  }
  return {tables.indices.data + tables.begins[s],
          std::int64_t{tables.begins[s + 1]} - tables.begins[s]};
}

}  // namespace quire
