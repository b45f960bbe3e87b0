// SPDX-License-Identifier: Apache-2.0
// The metadata of one batch in memory of its own (Python's BatchView).
//
// Arrays on the host are copied, so that nothing the program does to them later, in this thread or
// in another one, can make a prepared batch read elsewhere. Arrays on a device are held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "array.h"
#include "quire/batch.h"

namespace quire::python {

// Whole numbers from an array of any integer type or a sequence.
template <class T>
class Numbers {
 public:
  void read(const char* name, nb::handle source);
  // The same of two axes; rows are cut to `num_columns` unless that is negative.
  void read_rows(const char* name, nb::handle source, std::int64_t num_columns);
  void assign(const T* first, std::int64_t size) { host_.assign(first, first + size); }

  bool on_device() const noexcept { return held_.rank != 0; }
  ArrayView<T> view() const;
  const std::vector<T>& host() const noexcept { return host_; }
  std::vector<T>& host() noexcept { return host_; }
  std::int64_t num_rows() const noexcept { return num_rows_; }
  std::int64_t num_columns() const noexcept { return num_columns_; }

 private:
  void read_array(const char* name, const Array& array, std::int64_t columns);

  std::vector<T> host_;
  Array held_;  // on a device, as it is
  std::int64_t num_rows_ = 0;
  std::int64_t num_columns_ = 0;
};

class BatchArrays {
 public:
  struct Arguments {
    nb::handle query_begins;  // [num_sequences + 1], or a pair (begins, ends)
    nb::handle kv_lens;       // [num_sequences]
    nb::handle block_table;   // [num_sequences, max_blocks], a tuple (begins, indices), or None
    nb::handle slots;         // [num_new_kv_tokens], or None
    nb::handle kv_begins;     // [num_sequences] rows of ragged K and V, or None
    nb::handle tree_mask;     // a pair (bits, begins) or triple with depths, or None
    int block_size = 1;
  };

  BatchArrays() = default;
  explicit BatchArrays(const Arguments& arguments);
  explicit BatchArrays(const BatchView& batch);  // copies; host arrays only
  // No sequences, only rows to store.
  static BatchArrays only_slots(nb::handle slots);

  BatchView view() const;
  // The smallest that hold this batch; what only the device knows is taken from the shapes.
  // num_rows_of_q: below 0 those that the batch names. num_rows_of_k: of ragged K, else not used.
  BatchBounds bounds(std::int64_t num_rows_of_q, std::int64_t num_rows_of_k, int block_size) const;
  bool has_slots() const noexcept { return slots_.view().size > 0; }
  bool has_tree_mask() const noexcept { return has_tree_mask_; }
  // Lengths that only the device knows: what a batch may hold is what its bounds say.
  bool on_device() const noexcept { return begins_.on_device() || kv_lens_.on_device(); }
  bool is_ragged() const noexcept { return kind_ == BlockTables::Kind::kRagged; }
  std::int64_t num_sequences() const noexcept { return kv_lens_.view().size; }

 private:
  void read_queries(nb::handle source);
  void read_table(const Arguments& arguments);
  void read_tree(nb::handle source);
  void make_rows();

  bool is_packed_ = true;  // begins_ holds offsets
  Numbers<std::int32_t> begins_;
  Numbers<std::int32_t> ends_;
  Numbers<std::int32_t> kv_lens_;
  BlockTables::Kind kind_ = BlockTables::Kind::kPadded;
  Numbers<std::int32_t> indices_;
  std::int64_t padded_stride_ = 0;
  Numbers<std::int32_t> table_begins_;
  Numbers<std::int64_t> rows_;
  Numbers<std::int64_t> slots_;
  bool has_tree_mask_ = false;
  Numbers<std::uint8_t> tree_bits_;
  Numbers<std::int64_t> tree_begins_;
  Numbers<std::int32_t> tree_depths_;
};

}  // namespace quire::python
