// SPDX-License-Identifier: Apache-2.0
// A spec and a batch out of any bytes. make_corpus.py writes the same format.
//
// Every array is allocated with exactly its size, so that a sanitizer sees the first element read
// beyond it. Bytes that are missing read as 0. Integers are little-endian; the largest value of a
// width stands for the largest of its field, to reach the edges of 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire::fuzz {

class ByteReader {
 public:
  ByteReader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T read() {
    T value{};
    const std::size_t count = size_ < sizeof value ? size_ : sizeof value;
    if (count != 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  int byte() { return read<std::uint8_t>(); }

  // A narrow integer as a wide one.
  template <class Narrow, class Wide>
  Wide widened() {
    const Narrow value = read<Narrow>();
    return value == std::numeric_limits<Narrow>::max() ? std::numeric_limits<Wide>::max()
                                                       : static_cast<Wide>(value);
  }

  // Mostly `size`; rarely, up to 16 more or fewer.
  std::int64_t size_near(std::int64_t size) {
    const int deviation = byte();
    return deviation < 224 ? size : size + deviation - 240;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Owns what a view points to.
template <class T>
struct ExactArray {
  std::unique_ptr<T[]> data;
  ArrayView<T> view;

  template <class Narrow>
  void fill(ByteReader& bytes, std::int64_t size) {
    const auto count = static_cast<std::size_t>(size < 0 ? 0 : size);
    data = std::make_unique<T[]>(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = bytes.widened<Narrow, T>();
    view = ArrayView<T>(data.get(), size);
  }
};

inline AttentionSpec read_spec(ByteReader& bytes) {
  AttentionSpec spec;
  spec.num_kv_heads = bytes.byte() % 9;
  spec.num_q_heads = spec.num_kv_heads * (bytes.byte() % 5) + (bytes.byte() == 255 ? 1 : 0);
  spec.head_dim = bytes.byte();
  spec.value_dim = bytes.byte();
  spec.q_dtype = static_cast<DType>(bytes.byte() % 4);
  spec.out_dtype = static_cast<DType>(bytes.byte() % 4);
  spec.kv.dtype = static_cast<DType>(bytes.byte() % 7);
  spec.kv.scales = static_cast<ScaleGranularity>(bytes.byte() % 5);
  spec.kv.block_size = bytes.byte() % 65;
  spec.kv.v_in_k = bytes.byte() % 2 == 1;
  spec.kv.layout = static_cast<KvLayoutId>(bytes.read<std::uint16_t>() % 258);
  spec.alignment = static_cast<Alignment>(bytes.byte() % 3);
  spec.mask.causal = bytes.byte() % 2 == 1;
  spec.mask.window_left = bytes.widened<std::int16_t, std::int64_t>();
  spec.mask.window_right = bytes.widened<std::int16_t, std::int64_t>();
  spec.mask.chunk = bytes.widened<std::int16_t, std::int64_t>();
  const int features = bytes.byte();
  spec.features.softcap = (features & 1) != 0;
  spec.features.alibi = (features & 2) != 0;
  spec.features.sinks = (features & 4) != 0;
  spec.features.bias = (features & 8) != 0;
  spec.features.tree_mask = (features & 16) != 0;
  spec.features.lse = (features & 32) != 0;
  return spec;
}

inline BatchBounds read_bounds(ByteReader& bytes) {
  BatchBounds bounds;
  bounds.max_sequences = bytes.widened<std::int8_t, std::int64_t>();
  bounds.max_tokens = bytes.widened<std::int16_t, std::int64_t>();
  bounds.max_kv_len = bytes.widened<std::int16_t, std::int64_t>();
  bounds.max_total_kv_len = bytes.widened<std::int32_t, std::int64_t>();
  return bounds;
}

struct MetadataInput {
  explicit MetadataInput(ByteReader& bytes) : spec(read_spec(bytes)), bounds(read_bounds(bytes)) {
    read_batch(bytes);
    read_tree(bytes);
  }
  MetadataInput(const MetadataInput&) = delete;
  MetadataInput& operator=(const MetadataInput&) = delete;

  AttentionSpec spec;
  BatchBounds bounds;
  ExactArray<std::int32_t> query_begins, query_ends, lens, indices, index_begins, depths;
  ExactArray<std::int64_t> rows, slots, tree_begins;
  ExactArray<std::uint8_t> tree_bits;
  BatchView batch;

 private:
  void read_batch(ByteReader& bytes) {
    const std::int64_t num_sequences = bytes.byte() % 32;
    query_begins.fill<std::int16_t>(bytes, num_sequences);
    query_ends.fill<std::int16_t>(bytes, bytes.size_near(num_sequences));
    lens.fill<std::int16_t>(bytes, bytes.size_near(num_sequences));
    BlockTables& blocks = batch.kv.blocks;
    blocks.kind = static_cast<BlockTables::Kind>(bytes.byte() % 4);
    blocks.row_stride = bytes.widened<std::int8_t, std::int64_t>();
    const bool padded = blocks.kind == BlockTables::Kind::kPadded;
    const std::int64_t num_indices = padded && blocks.row_stride >= 0 && blocks.row_stride < 128
                                         ? num_sequences * blocks.row_stride
                                         : bytes.byte();
    indices.fill<std::int16_t>(bytes, bytes.size_near(num_indices));
    index_begins.fill<std::int16_t>(
        bytes, bytes.size_near(blocks.kind == BlockTables::Kind::kIndexed ? num_sequences + 1 : 0));
    rows.fill<std::int32_t>(
        bytes, bytes.size_near(blocks.kind == BlockTables::Kind::kRagged ? num_sequences : 0));
    slots.fill<std::int32_t>(bytes, bytes.byte());
    batch.queries = {query_begins.view, query_ends.view};
    batch.kv.lens = lens.view;
    batch.kv.slots = slots.view;
    blocks.indices = indices.view;
    blocks.begins = index_begins.view;
    blocks.rows = rows.view;
  }

  void read_tree(ByteReader& bytes) {
    const int has_tree = bytes.byte();
    if (has_tree == 0) return;
    tree_begins.fill<std::int16_t>(bytes, bytes.size_near(query_begins.view.size));
    tree_bits.fill<std::uint8_t>(bytes, bytes.byte());
    depths.fill<std::int8_t>(bytes, has_tree == 1 ? 0 : bytes.byte());
    batch.tree_mask = {tree_bits.view, tree_begins.view, depths.view};
  }
};

}  // namespace quire::fuzz
