// SPDX-License-Identifier: Apache-2.0
// A batch taken apart into prefill and decode, and two batches joined. Only metadata moves: query
// ranges keep naming rows of the same Q, K, V and output.
#include <algorithm>
#include <limits>
#include <vector>

#include "attention/batch_structure.h"
#include "quire/batch_convert.h"

namespace quire {
namespace {

using Kind = BlockTables::Kind;

// The sequences [first, first + count) of a batch, by pointing into it. Slots stay away.
BatchView run_of(const BatchView& batch, std::int64_t first, std::int64_t count) {
  const BlockTables& tables = batch.kv.blocks;
  BatchView run;
  run.queries = {batch.queries.begins.subview(first, count),
                 batch.queries.ends.subview(first, count)};
  run.kv.lens = batch.kv.lens.subview(first, count);
  run.kv.blocks = tables;
  if (tables.kind == Kind::kPadded) {
    run.kv.blocks.indices =
        tables.indices.subview(first * tables.row_stride, count * tables.row_stride);
  } else if (tables.kind == Kind::kIndexed) {
    run.kv.blocks.begins = tables.begins.subview(first, count + 1);
  } else {
    run.kv.blocks.rows = tables.rows.subview(first, count);
  }
  if (batch.tree_mask.present() && count > 0) {
    run.tree_mask = batch.tree_mask;
    run.tree_mask.begins = batch.tree_mask.begins.subview(first, count);
  }
  return run;
}

// Collects sequences of one or more batches into a storage: one part of a split, or a join.
class SequenceCollector {
 public:
  SequenceCollector(std::int64_t num_sequences, Kind kind, std::int64_t row_stride, bool tree,
                    BatchStorage& storage)
      : kind_(kind), row_stride_(row_stride), tree_(tree), storage_(storage) {
    resize_array(storage.query_begins, num_sequences);
    resize_array(storage.query_ends, num_sequences);
    resize_array(storage.lens, num_sequences);
    if (tree) resize_array(storage.tree_begins, num_sequences);
    if (kind == Kind::kPadded) resize_array(storage.table, num_sequences * row_stride);
    if (kind == Kind::kIndexed) {
      resize_array(storage.table_begins, num_sequences + 1)[0] = 0;
      storage.table.clear();
    }
    if (kind == Kind::kRagged) resize_array(storage.rows, num_sequences);
  }

  // `tree_shift` is added to where the tree mask of the sequence begins.
  void add(const BatchView& batch, std::int64_t s, std::int64_t tree_shift) {
    const auto out = static_cast<std::size_t>(size_++);
    storage_.query_begins[out] = batch.queries.begins[s];
    storage_.query_ends[out] = batch.queries.ends[s];
    storage_.lens[out] = batch.kv.lens[s];
    if (tree_) {
      const bool plain = !batch.tree_mask.present() || batch.tree_mask.begins[s] < 0;
      storage_.tree_begins[out] = plain ? -1 : batch.tree_mask.begins[s] + tree_shift;
    }
    if (kind_ == Kind::kRagged) {
      storage_.rows[out] = batch.kv.blocks.rows[s];
    } else {
      add_table(table_row(batch.kv.blocks, s), static_cast<std::int64_t>(out));
    }
  }

  // Without slots; of the tree mask only where it begins.
  BatchView view() const {
    BatchView batch;
    batch.queries = {storage_.query_begins, storage_.query_ends};
    batch.kv.lens = storage_.lens;
    if (tree_) batch.tree_mask.begins = storage_.tree_begins;
    if (kind_ == Kind::kPadded) batch.kv.blocks = BlockTables::padded(storage_.table, row_stride_);
    if (kind_ == Kind::kIndexed) {
      batch.kv.blocks = BlockTables::indexed(storage_.table_begins, storage_.table);
    }
    if (kind_ == Kind::kRagged) batch.kv.blocks = BlockTables::ragged(storage_.rows);
    return batch;
  }

 private:
  void add_table(const TableRow& row, std::int64_t out) {
    if (kind_ == Kind::kPadded) {
      std::int32_t* entries = storage_.table.data() + out * row_stride_;
      std::copy_n(row.blocks, row.size, entries);
      std::fill(entries + row.size, entries + row_stride_, 0);
      return;
    }
    const std::int64_t begin = static_cast<std::int64_t>(storage_.table.size());
    const std::int64_t end = begin + row.size;
    require(end <= kInt32Max, "block tables: entries of the joined batch are ", end,
            ", must be <= ", kInt32Max);
    std::copy_n(row.blocks, row.size, resize_array(storage_.table, end) + begin);
    storage_.table_begins[static_cast<std::size_t>(out) + 1] = narrow(end);
  }

  Kind kind_;
  std::int64_t row_stride_;
  bool tree_;
  BatchStorage& storage_;
  std::int64_t size_ = 0;
};

// One part of a split, without slots.
BatchView part_of(const BatchView& batch, const std::vector<std::int32_t>& sequences,
                  BatchStorage& storage) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  if (count == 0) return run_of(batch, 0, 0);
  const std::int64_t first = sequences.front();
  if (sequences.back() - first + 1 == count) return run_of(batch, first, count);
  SequenceCollector part(count, batch.kv.blocks.kind, batch.kv.blocks.row_stride,
                         batch.tree_mask.present(), storage);
  for (const std::int32_t s : sequences) part.add(batch, s, 0);
  BatchView view = part.view();
  view.tree_mask.bits = batch.tree_mask.bits;
  view.tree_mask.depths = batch.tree_mask.depths;
  return view;
}

// The slots of the batch without those of another part's query rows.
ArrayView<std::int64_t> slots_without(const ArrayView<std::int64_t>& slots,
                                      const QueryRanges& others, BatchStorage& storage) {
  if (others.num_sequences() == 0) return slots;
  std::int64_t* out = resize_array(storage.slots, slots.size);
  std::copy_n(slots.data, slots.size, out);
  for (std::int64_t s = 0; s < others.num_sequences(); ++s) {
    std::fill(out + others.begins[s], out + others.ends[s], -1);
  }
  return storage.slots;
}

// The slots of these query rows alone.
ArrayView<std::int64_t> slots_of(const ArrayView<std::int64_t>& slots, const QueryRanges& own,
                                 BatchStorage& storage) {
  std::int64_t* out = resize_array(storage.slots, slots.size);
  std::fill_n(out, slots.size, -1);
  for (std::int64_t s = 0; s < own.num_sequences(); ++s) {
    std::copy(slots.data + own.begins[s], slots.data + own.ends[s], out + own.begins[s]);
  }
  return storage.slots;
}

// Calls visit(batch, s) for the sequences of both batches, ordered by their rows. Both are ordered,
// and of two ranges that begin together only the first may be empty, so this is a merge.
template <class Visit>
void visit_by_row(const BatchView& a, const BatchView& b, Visit visit) {
  std::int64_t i = 0;
  std::int64_t j = 0;
  while (i < a.num_sequences() || j < b.num_sequences()) {
    const bool from_a =
        j == b.num_sequences() ||
        (i < a.num_sequences() &&
         (a.queries.begins[i] < b.queries.begins[j] ||
          (a.queries.begins[i] == b.queries.begins[j] && a.queries.ends[i] <= b.queries.ends[j])));
    if (from_a) {
      visit(a, i++);
    } else {
      visit(b, j++);
    }
  }
}

Kind joined_kind(const BatchView& a, const BatchView& b) {
  const Kind kind_a = a.kv.blocks.kind;
  const Kind kind_b = b.kv.blocks.kind;
  if (kind_a == kind_b || b.num_sequences() == 0) return kind_a;
  if (a.num_sequences() == 0) return kind_b;
  require(kind_a != Kind::kRagged && kind_b != Kind::kRagged,
          "one part has block tables, the other ragged rows: their keys lie in different tensors");
  return Kind::kIndexed;
}

ArrayView<std::int64_t> join_slots(const ArrayView<std::int64_t>& a,
                                   const ArrayView<std::int64_t>& b, BatchStorage& storage) {
  if (b.empty()) return a;
  if (a.empty()) return b;
  const std::int64_t size = std::max(a.size, b.size);
  std::int64_t* out = resize_array(storage.slots, size);
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t slot_a = i < a.size ? a[i] : -1;
    const std::int64_t slot_b = i < b.size ? b[i] : -1;
    require(slot_a < 0 || slot_b < 0, "both parts store new row ", i, ": slots are ", slot_a,
            " and ", slot_b);
    out[i] = std::max(slot_a, slot_b);
  }
  return storage.slots;
}

// Bits of b follow those of a, unless both are the same array. Returns by how much they moved.
std::int64_t join_tree_bits(const ArrayView<std::uint8_t>& a, const ArrayView<std::uint8_t>& b,
                            BatchStorage& storage, ArrayView<std::uint8_t>& joined) {
  joined = a;
  if (b.empty() || (a.data == b.data && a.size == b.size)) return 0;
  joined = b;
  if (a.empty()) return 0;
  require(a.size <= std::numeric_limits<std::int64_t>::max() - b.size, "tree mask bits: sizes are ",
          a.size, " and ", b.size);
  std::uint8_t* out = resize_array(storage.tree_bits, a.size + b.size);
  std::copy_n(b.data, b.size, std::copy_n(a.data, a.size, out));
  joined = storage.tree_bits;
  return a.size;
}

// Rows of no sequence get 0. A part without depths has those that its queries' order implies.
ArrayView<std::int32_t> join_depths(const BatchView& a, const BatchView& b, std::int64_t num_rows,
                                    BatchStorage& storage) {
  const ArrayView<std::int32_t>& depths_a = a.tree_mask.depths;
  const ArrayView<std::int32_t>& depths_b = b.tree_mask.depths;
  if (depths_a.data == depths_b.data && depths_a.size == depths_b.size) return depths_a;
  if (depths_a.empty() && depths_b.empty()) return {};
  std::int32_t* out = resize_array(storage.depths, num_rows);
  std::fill_n(out, num_rows, 0);
  for (const BatchView* part : {&a, &b}) {
    const ArrayView<std::int32_t>& depths = part->tree_mask.depths;
    for (std::int64_t s = 0; s < part->num_sequences(); ++s) {
      const std::int32_t begin = part->queries.begins[s];
      for (std::int32_t row = begin; row < part->queries.ends[s]; ++row) {
        out[row] = depths.empty() ? row - begin : depths[row];
      }
    }
  }
  return storage.depths;
}

}  // namespace

void split_batch(const BatchView& batch, std::int64_t decode_max_q_len, NewKvRows new_kv,
                 BatchSplit& split) {
  require(decode_max_q_len >= 0, "decode_max_q_len is ", decode_max_q_len, ", must be >= 0");
  const std::int64_t num_rows = check_structure(batch);
  const ArrayView<std::int64_t>& slots = batch.kv.slots;
  const bool by_row = new_kv == NewKvRows::kQueries && !slots.empty();
  require(!by_row || slots.size >= num_rows, "slots: size is ", slots.size,
          ", must be that of the query rows or more: ", num_rows);

  split.prefill_sequences.clear();
  split.decode_sequences.clear();
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const bool decode = q_len_of(batch.queries, s) <= decode_max_q_len;
    (decode ? split.decode_sequences : split.prefill_sequences).push_back(narrow(s));
  }
  split.prefill = part_of(batch, split.prefill_sequences, split.prefill_storage);
  split.decode = part_of(batch, split.decode_sequences, split.decode_storage);
  if (by_row) {
    split.prefill.kv.slots = slots_without(slots, split.decode.queries, split.prefill_storage);
    split.decode.kv.slots = slots_of(slots, split.decode.queries, split.decode_storage);
  } else {
    split.prefill.kv.slots = slots;
  }
}

BatchView join_batches(const BatchView& prefill, const BatchView& decode, BatchStorage& storage) {
  const std::int64_t num_rows = std::max(check_structure(prefill), check_structure(decode));
  const std::int64_t num_sequences = prefill.num_sequences() + decode.num_sequences();
  require(num_sequences <= kInt32Max, "sequences are ", num_sequences, ", must be <= ", kInt32Max);
  std::int32_t previous = 0;
  visit_by_row(prefill, decode, [&](const BatchView& part, std::int64_t s) {
    require(part.queries.begins[s] >= previous, &part == &decode ? "decode" : "prefill",
            " sequence ", s, ": query rows begin at ", part.queries.begins[s],
            ", within the other part, must be >= ", previous);
    previous = part.queries.ends[s];
  });

  ArrayView<std::uint8_t> bits;
  const std::int64_t shift =
      join_tree_bits(prefill.tree_mask.bits, decode.tree_mask.bits, storage, bits);
  // The stride of a part without sequences means nothing.
  const std::int64_t stride =
      std::max(prefill.num_sequences() > 0 ? prefill.kv.blocks.row_stride : 0,
               decode.num_sequences() > 0 ? decode.kv.blocks.row_stride : 0);
  SequenceCollector joined(num_sequences, joined_kind(prefill, decode), stride,
                           prefill.tree_mask.present() || decode.tree_mask.present(), storage);
  visit_by_row(prefill, decode, [&](const BatchView& part, std::int64_t s) {
    joined.add(part, s, &part == &decode ? shift : 0);
  });
  BatchView batch = joined.view();
  batch.kv.slots = join_slots(prefill.kv.slots, decode.kv.slots, storage);
  batch.tree_mask.bits = bits;
  batch.tree_mask.depths = join_depths(prefill, decode, num_rows, storage);
  return batch;
}

}  // namespace quire
