// SPDX-License-Identifier: Apache-2.0
#include "batch_arrays.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "fail.h"

namespace quire::python {
namespace {

using Code = nb::dlpack::dtype_code;

bool is_none(nb::handle source) {
  return !source.is_valid() || source.is_none();
}

template <class From, class To>
void copy_numbers(const char* name, const Array& array, std::int64_t rows, std::int64_t columns,
                  std::vector<To>& to) {
  const auto row_axis = static_cast<std::size_t>(std::max(array.rank - 2, 0));
  const std::int64_t row_stride = array.rank == 2 ? array.strides[row_axis] : 0;
  const std::int64_t stride =
      array.rank == 0 ? 0 : array.strides[static_cast<std::size_t>(array.rank - 1)];
  to.resize(static_cast<std::size_t>(rows * columns));
  std::size_t written = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const From* from = static_cast<const From*>(array.data) + row * row_stride;
    if constexpr (std::is_same_v<From, To>) {
      if (stride == 1 || columns == 1) {
        std::memcpy(to.data() + written, from, static_cast<std::size_t>(columns) * sizeof(To));
        written += static_cast<std::size_t>(columns);
        continue;
      }
    }
    for (std::int64_t i = 0; i < columns; ++i, ++written) {
      From value{};
      std::memcpy(&value, from + i * stride, sizeof value);
      require(std::in_range<To>(value), name, ": index ", written, " does not fit ", sizeof(To) * 8,
              " bits: ", +value);
      to[written] = static_cast<To>(+value);
    }
  }
}

// Unaligned memory is read through memcpy, so any address will do.
template <class To>
void copy_any(const char* name, const Array& array, std::int64_t rows, std::int64_t columns,
              std::vector<To>& to) {
  const auto code = static_cast<Code>(array.element.code);
  const int bits = array.element.bits;
  if (code == Code::Int && bits == 32) {
    copy_numbers<std::int32_t>(name, array, rows, columns, to);
  } else if (code == Code::Int && bits == 64) {
    copy_numbers<std::int64_t>(name, array, rows, columns, to);
  } else if (code == Code::UInt && bits == 8) {
    copy_numbers<std::uint8_t>(name, array, rows, columns, to);
  } else if (code == Code::Int && bits == 8) {
    copy_numbers<std::int8_t>(name, array, rows, columns, to);
  } else if (code == Code::UInt && bits == 32) {
    copy_numbers<std::uint32_t>(name, array, rows, columns, to);
  } else if (code == Code::UInt && bits == 64) {
    copy_numbers<std::uint64_t>(name, array, rows, columns, to);
  } else if (code == Code::Int && bits == 16) {
    copy_numbers<std::int16_t>(name, array, rows, columns, to);
  } else if (code == Code::UInt && bits == 16) {
    copy_numbers<std::uint16_t>(name, array, rows, columns, to);
  } else {
    fail(ErrorCode::kInvalidArgument, name, ": needs whole numbers, has ",
         element_name(array.element));
  }
}

bool is_plain_sequence(nb::handle source) {
  return PyList_Check(source.ptr()) != 0 || PyTuple_Check(source.ptr()) != 0 ||
         PyRange_Check(source.ptr()) != 0;
}

// A tuple of two, unless of numbers: those have no length.
bool is_pair(nb::handle source) {
  if (PyTuple_Check(source.ptr()) == 0 || PyTuple_Size(source.ptr()) != 2) return false;
  const bool has_length = PyObject_Size(PyTuple_GetItem(source.ptr(), 0)) >= 0;
  if (!has_length) PyErr_Clear();
  return has_length;
}

template <class T>
T number(const char* name, std::size_t index, nb::handle item) {
  const nb::object integer = nb::steal(PyNumber_Index(item.ptr()));
  if (!integer.is_valid()) {
    PyErr_Clear();
    fail(ErrorCode::kInvalidArgument, name, ": index ", index, " is not a whole number");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  require(overflow == 0 && std::in_range<T>(value), name, ": index ", index, " does not fit ",
          sizeof(T) * 8, " bits: ", nb::cast<std::string>(nb::str(integer)));
  return static_cast<T>(value);
}

}  // namespace

template <class T>
void Numbers<T>::read_array(const char* name, const Array& array, std::int64_t columns) {
  const auto last = static_cast<std::size_t>(std::max(array.rank - 1, 0));
  num_rows_ = array.rank == 2 ? array.shape[0] : 1;
  num_columns_ = array.rank == 0 ? 1 : array.shape[last];
  if (array.device.is_host()) {
    if (columns >= 0) num_columns_ = std::min(num_columns_, columns);
    copy_any(name, array, num_rows_, num_columns_, host_);
    return;
  }
  const bool is_signed = static_cast<Code>(array.element.code) == Code::Int;
  require(is_signed == std::is_signed_v<T> && array.element.bits == sizeof(T) * 8, name,
          ": on a device it needs ", std::is_signed_v<T> ? "int" : "uint", sizeof(T) * 8, ", has ",
          element_name(array.element));
  const bool is_dense = array.size() == 0 || ((num_columns_ < 2 || array.strides[last] == 1) &&
                                              (num_rows_ < 2 || array.strides[0] == num_columns_));
  require(is_dense, name, ": on a device it must be contiguous");
  held_ = array;
  if (held_.rank == 0) held_.rank = 1;
}

template <class T>
void Numbers<T>::read(const char* name, nb::handle source) {
  if (!is_plain_sequence(source)) {
    const Array array = import_array(name, source);
    require(array.rank == 1, name, ": needs one axis, has ", array.rank);
    read_array(name, array, -1);
    return;
  }
  const nb::object list = nb::steal(PySequence_Tuple(source.ptr()));
  if (!list.is_valid()) nb::raise_python_error();
  for (const nb::handle item : list) host_.push_back(number<T>(name, host_.size(), item));
  num_rows_ = 1;
  num_columns_ = static_cast<std::int64_t>(host_.size());
}

template <class T>
void Numbers<T>::read_rows(const char* name, nb::handle source, std::int64_t num_columns) {
  if (!is_plain_sequence(source)) {
    const Array array = import_array(name, source);
    require(array.rank == 2, name, ": needs two axes, has ", array.rank);
    read_array(name, array, num_columns);
    return;
  }
  const nb::object rows = nb::steal(PySequence_Tuple(source.ptr()));
  if (!rows.is_valid()) nb::raise_python_error();
  std::vector<std::vector<T>> lists;
  std::size_t longest = 0;
  for (const nb::handle row : rows) {
    Numbers<T> one;
    one.read(name, row);
    require(!one.on_device(), name, ": row ", lists.size(), " is on a device");
    longest = std::max(longest, one.host_.size());
    lists.push_back(std::move(one.host_));
  }
  // Rows of a list may have different lengths: -1 fills what no key may use.
  for (std::vector<T>& list : lists) {
    list.resize(longest, static_cast<T>(-1));
    host_.insert(host_.end(), list.begin(), list.end());
  }
  num_rows_ = static_cast<std::int64_t>(lists.size());
  num_columns_ = static_cast<std::int64_t>(longest);
}

template <class T>
ArrayView<T> Numbers<T>::view() const {
  if (!on_device()) return host_;
  return {static_cast<const T*>(held_.data), held_.size(), held_.device};
}

BatchArrays::BatchArrays(const Arguments& arguments) {
  read_queries(arguments.query_begins);
  kv_lens_.read("kv_lens", arguments.kv_lens);
  read_table(arguments);
  if (!is_none(arguments.slots)) slots_.read("slots", arguments.slots);
  if (!is_none(arguments.tree_mask)) read_tree(arguments.tree_mask);
}

BatchArrays::BatchArrays(const BatchView& batch) : is_packed_(false), kind_(batch.kv.blocks.kind) {
  const auto copy = [](auto& to, const auto& from) { to.assign(from.data, from.size); };
  copy(begins_, batch.queries.begins);
  copy(ends_, batch.queries.ends);
  copy(kv_lens_, batch.kv.lens);
  copy(indices_, batch.kv.blocks.indices);
  copy(table_begins_, batch.kv.blocks.begins);
  copy(rows_, batch.kv.blocks.rows);
  copy(slots_, batch.kv.slots);
  copy(tree_bits_, batch.tree_mask.bits);
  copy(tree_begins_, batch.tree_mask.begins);
  copy(tree_depths_, batch.tree_mask.depths);
  has_tree_mask_ = batch.tree_mask.present();
  padded_stride_ = batch.kv.blocks.row_stride;
}

BatchArrays BatchArrays::only_slots(nb::handle slots) {
  BatchArrays arrays;
  arrays.is_packed_ = false;
  arrays.slots_.read("slots", slots);
  return arrays;
}

void BatchArrays::read_queries(nb::handle source) {
  is_packed_ = !is_pair(source);
  if (is_packed_) {
    begins_.read("query_begins", source);
    require(begins_.view().size > 0, "query_begins: needs num_sequences + 1 offsets, has 0");
    return;
  }
  begins_.read("query_begins[0]", nb::handle(PyTuple_GetItem(source.ptr(), 0)));
  ends_.read("query_begins[1]", nb::handle(PyTuple_GetItem(source.ptr(), 1)));
}

void BatchArrays::read_table(const Arguments& arguments) {
  const nb::handle table = arguments.block_table;
  if (is_none(table)) {
    kind_ = BlockTables::Kind::kRagged;
    if (is_none(arguments.kv_begins)) {
      make_rows();
    } else {
      rows_.read("kv_begins", arguments.kv_begins);
    }
    return;
  }
  require(is_none(arguments.kv_begins), "kv_begins: given together with block_table");
  if (PyTuple_Check(table.ptr()) != 0) {
    // Never rows: two rows would look the same.
    const Py_ssize_t size = PyTuple_Size(table.ptr());
    require(size == 2, "block_table: a tuple is (begins, indices), this one has ", size,
            " entries; rows of blocks go into a list or an array of two axes");
    kind_ = BlockTables::Kind::kIndexed;
    table_begins_.read("block_table[0]", nb::handle(PyTuple_GetItem(table.ptr(), 0)));
    indices_.read("block_table[1]", nb::handle(PyTuple_GetItem(table.ptr(), 1)));
    const std::int64_t num_begins = table_begins_.view().size;
    require(num_begins == num_sequences() + 1,
            "block_table: a tuple is (begins, indices), and begins needs ", num_sequences() + 1,
            " offsets, has ", num_begins,
            "; rows of blocks go into a list or an array of two axes");
    return;
  }
  // Columns that no key needs are not copied.
  std::int64_t columns = -1;
  if (!kv_lens_.on_device() && !kv_lens_.host().empty()) {
    const std::int64_t longest = *std::max_element(kv_lens_.host().begin(), kv_lens_.host().end());
    columns =
        (std::max<std::int64_t>(longest, 0) + arguments.block_size - 1) / arguments.block_size;
  }
  indices_.read_rows("block_table", table, columns);
  require(indices_.num_rows() >= num_sequences(), "block_table: needs ", num_sequences(),
          " rows, has ", indices_.num_rows());
  padded_stride_ = indices_.num_columns();
}

// Without begins the sequences of ragged K and V follow each other.
void BatchArrays::make_rows() {
  require(!kv_lens_.on_device(), "kv_begins: needed, because kv_lens is on a device");
  std::int64_t row = 0;
  for (const std::int32_t len : kv_lens_.host()) {
    rows_.host().push_back(row);
    row += std::max(len, 0);
  }
}

void BatchArrays::read_tree(nb::handle source) {
  const Py_ssize_t size = PyTuple_Check(source.ptr()) != 0 ? PyTuple_Size(source.ptr()) : 0;
  require(size == 2 || size == 3, "tree_mask: needs (bits, begins) or (bits, begins, depths)");
  tree_bits_.read("tree_mask[0]", nb::handle(PyTuple_GetItem(source.ptr(), 0)));
  tree_begins_.read("tree_mask[1]", nb::handle(PyTuple_GetItem(source.ptr(), 1)));
  const nb::handle depths = size == 3 ? nb::handle(PyTuple_GetItem(source.ptr(), 2)) : nb::handle();
  if (!is_none(depths)) tree_depths_.read("tree_mask[2]", depths);
  has_tree_mask_ = true;
}

BatchView BatchArrays::view() const {
  BatchView batch;
  if (is_packed_) {
    batch.queries = QueryRanges::packed(begins_.view());
  } else {
    batch.queries = {begins_.view(), ends_.view()};
  }
  batch.kv.lens = kv_lens_.view();
  batch.kv.blocks.kind = kind_;
  batch.kv.blocks.indices = indices_.view();
  batch.kv.blocks.row_stride = kind_ == BlockTables::Kind::kPadded ? padded_stride_ : 0;
  batch.kv.blocks.begins = table_begins_.view();
  batch.kv.blocks.rows = rows_.view();
  batch.kv.slots = slots_.view();
  batch.tree_mask.bits = tree_bits_.view();
  batch.tree_mask.begins = tree_begins_.view();
  batch.tree_mask.depths = tree_depths_.view();
  return batch;
}

BatchBounds BatchArrays::bounds(std::int64_t num_rows_of_q, std::int64_t num_rows_of_k,
                                int block_size) const {
  const BatchView batch = view();
  BatchBounds bounds;
  bounds.max_sequences = std::max<std::int64_t>(batch.num_sequences(), 1);
  bounds.max_tokens = std::max({num_rows_of_q, batch.kv.slots.size, std::int64_t{1}});
  const ArrayView<std::int32_t> lens = batch.kv.lens;
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  const bool is_padded = kind_ == BlockTables::Kind::kPadded;
  const std::int64_t blocks = is_padded ? padded_stride_ : batch.kv.blocks.indices.size;
  // Known before memory is sized by the lengths.
  const std::int64_t capacity =
      is_ragged() ? num_rows_of_k : std::min(blocks * block_size, kLargest);
  if (lens.device.is_host()) {
    for (std::int64_t s = 0; s < lens.size; ++s) {
      const std::int64_t keys = std::max(lens[s], 0);
      require(keys <= capacity, "kv_lens: sequence ", s, " has ", keys, " keys, more than its ",
              is_ragged() ? "rows of K" : "blocks", " can hold: ", capacity);
      bounds.max_kv_len = std::max(bounds.max_kv_len, keys);
      bounds.max_total_kv_len += keys;
    }
  } else {
    bounds.max_kv_len = capacity;
    bounds.max_total_kv_len = is_padded || is_ragged() ? capacity * bounds.max_sequences : capacity;
  }
  const QueryRanges& queries = batch.queries;
  if (queries.begins.device.is_host() && queries.ends.size == queries.begins.size) {
    for (std::int64_t s = 0; s < queries.num_sequences(); ++s) {
      const std::int64_t q_len = std::int64_t{queries.ends[s]} - queries.begins[s];
      bounds.max_q_len = std::max(bounds.max_q_len, q_len);
      if (num_rows_of_q < 0) {
        bounds.max_tokens = std::max<std::int64_t>(bounds.max_tokens, queries.ends[s]);
      }
    }
  }
  return bounds;
}

template class Numbers<std::uint8_t>;
template class Numbers<std::int32_t>;
template class Numbers<std::int64_t>;

}  // namespace quire::python
