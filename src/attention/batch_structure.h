// SPDX-License-Identifier: Apache-2.0
// What holds for every batch in host memory whatever the spec: arrays that exist and fit together,
// ordered ranges, tables inside their arrays. After check_structure nothing that a batch describes
// lies outside its arrays, except blocks: check_table_lengths, which needs a block size, covers
// them.
#pragma once

#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/check.h"
#include "quire/batch.h"
#include "quire/device.h"

namespace quire {

inline constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

template <class T>
void require_host_array(const char* name, const ArrayView<T>& array) {
  require(array.size >= 0, name, ": size is ", array.size, ", must be >= 0");
  require(array.size == 0 || array.device.is_host(), name, ": lies on a device (kind ",
          static_cast<int>(array.device.kind), "), must be in host memory");
  require(array.size == 0 || array.data != nullptr, name, ": no data, size is ", array.size);
}

// REQUIRES: a host array checked above.
template <class T>
void require_size(const char* name, const ArrayView<T>& array, std::int64_t size) {
  require(array.size == size, name, ": size is ", array.size, ", must be ", size);
}

// Offsets of num_sequences ranges: [num_sequences + 1], from 0, never falling. Returns the last.
std::int64_t require_offsets(const char* name, const ArrayView<std::int32_t>& offsets,
                             std::int64_t num_sequences);

// Slots are -1 or more.
void require_slots(const char* name, const ArrayView<std::int64_t>& slots);

// Throws unless the batch is sound apart from block ids and table lengths. Returns the number of
// query rows that it reaches: the largest end.
std::int64_t check_structure(const BatchView& batch);

// Throws unless every table has an entry for every key. REQUIRES: check_structure.
void check_table_lengths(const BatchView& batch, int block_size);

// The entries of one sequence. REQUIRES: check_structure, and tables that are not ragged.
struct TableRow {
  const std::int32_t* blocks = nullptr;  // [size]
  std::int64_t size = 0;
};
TableRow table_row(const BlockTables& tables, std::int64_t s);

inline std::int64_t num_blocks_of(std::int64_t kv_len, std::int64_t block_size) {
  return (kv_len + block_size - 1) / block_size;
}
inline std::int64_t q_len_of(const QueryRanges& queries, std::int64_t s) {
  return std::int64_t{queries.ends[s]} - queries.begins[s];
}

// A checked value as a signed 32-bit one. REQUIRES: it fits.
inline std::int32_t narrow(std::int64_t value) {
  QUIRE_DCHECK(value >= std::numeric_limits<std::int32_t>::min() && value <= kInt32Max);
  return static_cast<std::int32_t>(value);
}

// Keeps entries and capacity: a vector that has been this large does not allocate.
template <class T>
T* resize_array(std::vector<T>& array, std::int64_t size) {
  try {
    array.resize(static_cast<std::size_t>(size));
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kOutOfMemory, "batch metadata: no memory for entries: ", size);
  } catch (const std::length_error&) {
    fail(ErrorCode::kOutOfMemory, "batch metadata: no memory for entries: ", size);
  }
  return array.data();
}

}  // namespace quire
