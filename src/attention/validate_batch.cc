// SPDX-License-Identifier: Apache-2.0
// The metadata of a batch: shapes of all of it, contents of what lies on the host.
//
// Contents are checked in one pass over the sequences, then one over the slots. Ranges of table
// entries are reduced first and searched only for the message or for the place of the maximum, so
// that a decode step over long sequences costs little more than reading its tables.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/batch_arrays.h"
#include "attention/mask.h"
#include "attention/slot_set.h"
#include "attention/validate.h"
#include "base/check.h"

namespace quire {
namespace {

// Arrays on one device, each with memory behind it.
class MetadataDevice {
 public:
  template <class T>
  void add(const char* name, const ArrayView<T>& array) {
    require(array.size >= 0, name, ": negative size: ", array.size);
    if (array.empty()) return;
    require(array.data != nullptr, name, ": null, size ", array.size);
    require(reinterpret_cast<std::uintptr_t>(array.data) % alignof(T) == 0, name,
            ": not aligned to ", alignof(T), " bytes: ", static_cast<const void*>(array.data));
    if (first_name_ == nullptr) {
      first_name_ = name;
      device_ = array.device;
    } else if (array.device != device_) {
      fail(ErrorCode::kInvalidArgument, name, ": on ", device_text(array.device), ", but ",
           first_name_, " on ", device_text(device_));
    }
  }
  Device device() const { return device_; }

 private:
  const char* first_name_ = nullptr;
  Device device_;
};

void require_size(const char* name, std::int64_t size, const char* what, std::int64_t wanted) {
  require(size == wanted, name, ": needs ", wanted, " ", what, ", has ", size);
}

Device validate_device(const BatchView& batch, Device backend) {
  MetadataDevice all;
  for_each_array(batch, [&all](const char* name, const auto& array) { all.add(name, array); });
  if (!all.device().is_host() && all.device() != backend) {
    fail(ErrorCode::kInvalidArgument, "queries.begins: on ", device_text(all.device()),
         ", but the backend computes on ", device_text(backend));
  }
  return all.device();
}

void validate_table_shape(const AttentionSpec& spec, const BlockTables& tables,
                          std::int64_t num_sequences) {
  switch (tables.kind) {
    case BlockTables::Kind::kPadded:
      require(tables.row_stride >= 0, "kv.blocks.row_stride: negative: ", tables.row_stride);
      require(num_sequences == 0 || tables.row_stride <= tables.indices.size / num_sequences,
              "kv.blocks.indices: too few for ", num_sequences, " rows of ", tables.row_stride,
              ": ", tables.indices.size);
      return;
    case BlockTables::Kind::kIndexed:
      require_size("kv.blocks.begins", tables.begins.size, "offsets", num_sequences + 1);
      return;
    case BlockTables::Kind::kRagged:
      require(spec.kv.block_size == 1,
              "kv.blocks.rows: ragged K and V need spec.kv.block_size 1: ", spec.kv.block_size);
      require_size("kv.blocks.rows", tables.rows.size, "rows", num_sequences);
      return;
  }
  fail(ErrorCode::kInvalidArgument, "kv.blocks.kind: unknown: ", static_cast<int>(tables.kind));
}

void validate_shapes(const AttentionSpec& spec, const BatchBounds& bounds, const BatchView& batch) {
  const std::int64_t num_sequences = batch.num_sequences();
  require(num_sequences <= bounds.max_sequences, "queries.begins: ", num_sequences,
          " sequences, more than max_sequences ", bounds.max_sequences);
  require_size("queries.ends", batch.queries.ends.size, "ends", num_sequences);
  require_size("kv.lens", batch.kv.lens.size, "lengths", num_sequences);
  validate_table_shape(spec, batch.kv.blocks, num_sequences);
  require(batch.kv.slots.size <= bounds.max_tokens, "kv.slots: ", batch.kv.slots.size,
          " slots, more than max_tokens ", bounds.max_tokens);
  const TreeMask& tree = batch.tree_mask;
  if (!tree.present()) {
    require(tree.bits.empty(), "tree_mask.bits: given without tree_mask.begins, size ",
            tree.bits.size);
    require(tree.depths.empty(), "tree_mask.depths: given without tree_mask.begins, size ",
            tree.depths.size);
    return;
  }
  require(spec.features.tree_mask, "tree_mask.begins: the spec does not declare a tree mask");
  require_size("tree_mask.begins", tree.begins.size, "offsets", num_sequences);
}

// The rows of the sequences are ordered, disjoint and within the bounds.
void validate_queries(const BatchBounds& bounds, const QueryRanges& queries, BatchFacts& facts) {
  std::int64_t previous_end = 0;
  for (std::int64_t s = 0; s < queries.num_sequences(); ++s) {
    const std::int64_t begin = queries.begins[s];
    const std::int64_t end = queries.ends[s];
    require(begin >= 0, "queries.begins: sequence ", s, " begins at a negative row: ", begin);
    require(begin >= previous_end, "queries.begins: sequence ", s, " begins at row ", begin,
            ", before the end of the previous one at ", previous_end);
    require(end >= begin, "queries.ends: sequence ", s, " ends at row ", end,
            ", before its begin at ", begin);
    require(end <= bounds.max_tokens, "queries.ends: sequence ", s, " ends at row ", end,
            ", more than max_tokens ", bounds.max_tokens);
    require(end - begin <= bounds.longest_query(), "queries: sequence ", s, " has ", end - begin,
            " queries, more than max_q_len ", bounds.longest_query());
    facts.num_tokens += end - begin;
    facts.max_q_len = std::max(facts.max_q_len, end - begin);
    previous_end = end;
  }
  facts.num_rows = previous_end;
}

void validate_lens(const BatchBounds& bounds, const ArrayView<std::int32_t>& lens,
                   BatchFacts& facts) {
  for (std::int64_t s = 0; s < lens.size; ++s) {
    const std::int64_t kv_len = lens[s];
    require(kv_len >= 0, "kv.lens: sequence ", s, " has a negative length: ", kv_len);
    require(kv_len <= bounds.max_kv_len, "kv.lens: sequence ", s, " has ", kv_len,
            " keys, more than max_kv_len ", bounds.max_kv_len);
    facts.max_kv_len = std::max(facts.max_kv_len, kv_len);
    facts.total_kv_len += kv_len;
  }
  require(facts.total_kv_len <= bounds.max_total_kv_len, "kv.lens: ", facts.total_kv_len,
          " keys in all, more than max_total_kv_len ", bounds.max_total_kv_len);
}

// Bits and depths of sequence s. REQUIRES: valid query ranges and lengths.
void validate_tree(const BatchView& batch, std::int64_t s) {
  const TreeMask& tree = batch.tree_mask;
  const std::int64_t begin = tree.begins[s];
  require(begin >= -1, "tree_mask.begins: sequence ", s, " has an offset below -1: ", begin);
  if (begin < 0) return;
  const std::int64_t first_row = batch.queries.begins[s];
  const std::int64_t q_len = batch.queries.ends[s] - first_row;
  const std::int64_t kv_len = batch.kv.lens[s];
  require(q_len <= kv_len, "tree_mask.begins: sequence ", s, " has ", q_len,
          " queries, more than its keys: ", kv_len);
  require(begin <= tree.bits.size && tree_mask_bytes(q_len) <= tree.bits.size - begin,
          "tree_mask.bits: sequence ", s, " needs ", tree_mask_bytes(q_len), " bytes at offset ",
          begin, ", has ", tree.bits.size);
  if (tree.depths.empty()) return;
  for (std::int64_t i = 0; i < q_len; ++i) {
    const std::int64_t depth = tree.depths[first_row + i];
    require(depth >= 0 && depth < q_len, "tree_mask.depths: sequence ", s, ", query ", i,
            ": not in [0, ", q_len, "): ", depth);
  }
}

void validate_trees(const BatchView& batch, const BatchFacts& facts) {
  const TreeMask& tree = batch.tree_mask;
  if (!tree.present()) return;
  require(tree.depths.empty() || tree.depths.size >= facts.num_rows, "tree_mask.depths: needs ",
          facts.num_rows, " rows, has ", tree.depths.size);
  for (std::int64_t s = 0; s < facts.num_sequences; ++s) validate_tree(batch, s);
}

// The largest of some values, unless one is negative.
struct Extremes {
  bool any_negative = false;
  std::int32_t largest = -1;
};

// Written in vectors, because compilers do not agree to make them at every level. The sign of all
// values together takes one instruction; a minimum takes four on a baseline x86.
Extremes extremes_of(const std::int32_t* values, std::int64_t size) {
  using Lanes [[gnu::vector_size(16)]] = std::int32_t;
  constexpr std::int64_t kWidth = 4;
  const auto load = [](const std::int32_t* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
  };
  Lanes signs[2] = {};
  Lanes largest[2] = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
  std::int64_t i = 0;
  for (; i + 2 * kWidth <= size; i += 2 * kWidth) {
    const Lanes even = load(values + i);
    const Lanes odd = load(values + i + kWidth);
    signs[0] |= even;
    signs[1] |= odd;
    largest[0] = even > largest[0] ? even : largest[0];
    largest[1] = odd > largest[1] ? odd : largest[1];
  }
  std::int32_t sign = 0;
  Extremes all;
  for (int lane = 0; lane < kWidth; ++lane) {
    sign |= signs[0][lane] | signs[1][lane];
    all.largest = std::max({all.largest, largest[0][lane], largest[1][lane]});
  }
  for (; i < size; ++i) {
    sign |= values[i];
    all.largest = std::max(all.largest, values[i]);
  }
  all.any_negative = sign < 0;
  return all;
}

// The table of one sequence. REQUIRES: `begins` of an indexed table is valid up to s + 1.
struct TableRow {
  std::int64_t first = 0;  // entry of its block 0 in indices
  std::int64_t size = 0;
};

TableRow table_row(const BlockTables& tables, std::int64_t s) {
  if (tables.kind == BlockTables::Kind::kPadded) return {s * tables.row_stride, tables.row_stride};
  return {tables.begins[s], tables.begins[s + 1] - tables.begins[s]};
}

void validate_index_begins(const BlockTables& tables) {
  require(tables.begins[0] >= 0,
          "kv.blocks.begins: negative offset at index 0: ", tables.begins[0]);
  for (std::int64_t i = 1; i < tables.begins.size; ++i) {
    require(tables.begins[i] >= tables.begins[i - 1], "kv.blocks.begins: sequence ", i - 1,
            " ends at ", tables.begins[i], ", before its begin at ", tables.begins[i - 1]);
  }
  const std::int64_t end = tables.begins[tables.begins.size - 1];
  require(end <= tables.indices.size, "kv.blocks.indices: needs ", end, " entries, has ",
          tables.indices.size);
}

bool has_tree(const BatchView& batch, std::int64_t s) {
  return batch.tree_mask.present() && batch.tree_mask.begins[s] >= 0;
}

// Does some query of a sequence with a tree mask see a key of this block?
bool is_block_seen(const AttentionSpec& spec, const SequenceView& sequence, std::int64_t first_old,
                   std::int64_t block) {
  const std::int64_t block_size = spec.kv.block_size;
  const std::int64_t end = std::min((block + 1) * block_size, sequence.kv_len);
  for (std::int64_t j = block * block_size; j < end; ++j) {
    if (is_seen_in_tree(spec.mask, sequence, first_old, j)) return true;
  }
  return false;
}

// Under a tree mask blocks in the middle may be seen by nobody, so each is looked at by itself.
void validate_tree_blocks(const AttentionSpec& spec, const BatchView& batch, std::int64_t s,
                          BatchFacts::Largest& largest) {
  const SequenceView sequence = sequence_view(batch, s);
  const TableRow row = table_row(batch.kv.blocks, s);
  const std::int64_t first_old = first_old_key_seen(spec.mask, sequence);
  const std::int64_t num_blocks = (sequence.kv_len + spec.kv.block_size - 1) / spec.kv.block_size;
  for (std::int64_t i = first_old / spec.kv.block_size; i < num_blocks; ++i) {
    if (!is_block_seen(spec, sequence, first_old, i)) continue;
    require(i < row.size, "kv.blocks: sequence ", s, " needs ", i + 1, " table entries for ",
            sequence.kv_len, " keys, has ", row.size);
    const std::int32_t block = batch.kv.blocks.indices[row.first + i];
    require(block >= 0, "kv.blocks: sequence ", s, ", table entry ", i,
            ": negative block: ", block);
    if (block > largest.value) largest = {.value = block, .sequence = s, .index = i};
  }
}

// Entries of the visible blocks of sequence s, as indices into tables.indices.
KeyRange used_entries(const AttentionSpec& spec, const BatchView& batch, std::int64_t s) {
  const SequenceView sequence = sequence_view(batch, s);
  const KeyRange keys = keys_seen(spec.mask, spec.alignment, sequence, 0, sequence.q_len);
  if (keys.empty()) return {};
  const std::int64_t first_block = keys.begin / spec.kv.block_size;
  const std::int64_t last_block = (keys.end - 1) / spec.kv.block_size;
  const TableRow row = table_row(batch.kv.blocks, s);
  require(last_block < row.size, "kv.blocks: sequence ", s, " needs ", last_block + 1,
          " table entries for ", keys.end, " keys, has ", row.size);
  return {row.first + first_block, row.first + last_block + 1};
}

[[noreturn]] void fail_negative_block(const BlockTables& tables, std::int64_t s, KeyRange used) {
  const std::int32_t* const end = tables.indices.data + used.end;
  const std::int32_t* const entry =
      std::find_if(tables.indices.data + used.begin, end, [](std::int32_t id) { return id < 0; });
  fail(ErrorCode::kInvalidArgument, "kv.blocks: sequence ", s, ", table entry ",
       entry - tables.indices.data - table_row(tables, s).first, ": negative block: ", *entry);
}

void validate_blocks(const AttentionSpec& spec, const BatchView& batch, BatchFacts& facts) {
  const BlockTables& tables = batch.kv.blocks;
  if (tables.kind == BlockTables::Kind::kIndexed) validate_index_begins(tables);
  BatchFacts::Largest& largest = facts.largest_block;
  for (std::int64_t s = 0; s < facts.num_sequences; ++s) {
    if (has_tree(batch, s)) {
      validate_tree_blocks(spec, batch, s, largest);
      continue;
    }
    const KeyRange used = used_entries(spec, batch, s);
    if (used.empty()) continue;
    const Extremes blocks = extremes_of(tables.indices.data + used.begin, used.size());
    if (blocks.any_negative) fail_negative_block(tables, s, used);
    if (blocks.largest > largest.value) {
      largest = {.value = blocks.largest, .sequence = s, .index = -1};
    }
  }
  if (largest.sequence < 0 || largest.index >= 0) return;  // none, or found in a tree
  const KeyRange used = used_entries(spec, batch, largest.sequence);
  const std::int32_t* const entry =
      std::find(tables.indices.data + used.begin, tables.indices.data + used.end,
                static_cast<std::int32_t>(largest.value));
  largest.index = entry - tables.indices.data - table_row(tables, largest.sequence).first;
}

void validate_rows(const AttentionSpec& spec, const BatchView& batch, BatchFacts& facts) {
  for (std::int64_t s = 0; s < facts.num_sequences; ++s) {
    const SequenceView sequence = sequence_view(batch, s);
    const KeyRange keys = keys_seen(spec.mask, spec.alignment, sequence, 0, sequence.q_len);
    if (keys.empty()) continue;
    const std::int64_t row = batch.kv.blocks.rows[s];
    require(row >= 0, "kv.blocks.rows: sequence ", s, " begins at a negative row: ", row);
    require(row <= std::numeric_limits<std::int64_t>::max() - keys.end, "kv.blocks.rows: sequence ",
            s, " with ", keys.end, " keys does not fit 64-bit rows: ", row);
    if (row + keys.end > facts.largest_row.value) {
      facts.largest_row = {.value = row + keys.end, .sequence = s, .index = keys.end - 1};
    }
  }
}

void validate_slots(const ArrayView<std::int64_t>& slots, void* scratch, BatchFacts& facts) {
  if (slots.empty()) return;
  SlotSet seen(static_cast<std::int32_t*>(scratch), slots);
  for (std::int64_t i = 0; i < slots.size; ++i) {
    const std::int64_t slot = slots[i];
    require(slot >= -1, "kv.slots: index ", i, " holds a slot below -1: ", slot);
    if (slot < 0) continue;
    const std::int64_t earlier = seen.insert(i);
    require(earlier < 0, "kv.slots: indices ", earlier, " and ", i, " hold the same slot: ", slot);
    if (slot > facts.largest_slot.value) facts.largest_slot = {.value = slot, .index = i};
  }
}

// Of a batch in device memory: what its contents may be at most.
BatchFacts facts_of_bounds(const BatchBounds& bounds, const BatchView& batch) {
  const TreeMask& tree = batch.tree_mask;
  require(tree.depths.empty() || tree.depths.size >= bounds.max_tokens, "tree_mask.depths: needs ",
          bounds.max_tokens, " rows, has ", tree.depths.size);
  BatchFacts facts;
  facts.num_rows = bounds.max_tokens;
  facts.num_tokens = bounds.max_tokens;
  facts.max_q_len = bounds.longest_query();
  facts.max_kv_len = bounds.max_kv_len;
  facts.total_kv_len = bounds.max_total_kv_len;
  facts.on_device = true;
  return facts;
}

}  // namespace

BatchFacts validate_batch(const AttentionSpec& spec, const BatchBounds& bounds,
                          const BatchView& batch, Device device, void* scratch) {
  const Device metadata_device = validate_device(batch, device);
  validate_shapes(spec, bounds, batch);
  BatchFacts facts;
  if (!metadata_device.is_host()) facts = facts_of_bounds(bounds, batch);
  facts.num_sequences = batch.num_sequences();
  facts.num_new_kv = batch.kv.slots.size;
  if (facts.on_device) return facts;

  validate_queries(bounds, batch.queries, facts);
  validate_lens(bounds, batch.kv.lens, facts);
  validate_trees(batch, facts);
  if (batch.kv.blocks.kind == BlockTables::Kind::kRagged) {
    validate_rows(spec, batch, facts);
  } else {
    validate_blocks(spec, batch, facts);
  }
  validate_slots(batch.kv.slots, scratch, facts);
  return facts;
}

}  // namespace quire
