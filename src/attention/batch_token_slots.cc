// SPDX-License-Identifier: Apache-2.0
// The clients whose metadata names the slot of every key: transformers and SGLang.
//
// Both come down to a function slot_of(s, j). A list of slots says nothing of blocks, so a block
// size above 1 must follow from the slots themselves.
#include <algorithm>
#include <limits>
#include <vector>

#include "attention/batch_packing.h"
#include "attention/batch_structure.h"
#include "layout/kv_offset.h"
#include "quire/batch_convert.h"

namespace quire {
namespace {

// The first key that is not where the first key of its block says, or kv_len if there is none. A
// block is released as a whole or not at all: a hole in it could not be expressed.
template <class SlotOf>
std::int64_t first_misaligned(SlotOf slot_of, std::int64_t s, std::int64_t kv_len, int block_size) {
  if (block_size == 1) return kv_len;
  for (std::int64_t begin = 0; begin < kv_len; begin += block_size) {
    const std::int64_t first = slot_of(s, begin);
    if (first >= 0 && first % block_size != 0) return begin;
    const std::int64_t step = first < 0 ? 0 : 1;
    const std::int64_t end = std::min(begin + block_size, kv_len);
    for (std::int64_t j = begin + 1; j < end; ++j) {
      if (slot_of(s, j) != first + step * (j - begin)) return j;
    }
  }
  return kv_len;
}

template <class SlotOf>
int largest_aligned(SlotOf slot_of, const ArrayView<std::int32_t>& lens, int max_block_size) {
  // Slots aligned to 2 b are aligned to b, so the first failure ends the search.
  int block_size = 1;
  while (block_size <= max_block_size / 2) {
    for (std::int64_t s = 0; s < lens.size; ++s) {
      if (first_misaligned(slot_of, s, lens[s], block_size * 2) < lens[s]) return block_size;
    }
    block_size *= 2;
  }
  return block_size;
}

// Throws unless every slot is -1 or more and its block has 32 bits. REQUIRES: slot_of may be called
// for these lens. Two passes: the first, over everything, is only a minimum and a maximum.
template <class SlotOf>
void require_read_slots(const char* name, SlotOf slot_of, const ArrayView<std::int32_t>& lens,
                        int block_size) {
  require(block_size >= 1, "block_size is ", block_size, ", must be >= 1");
  const std::int64_t highest = kInt32Max * block_size + block_size - 1;
  for (std::int64_t s = 0; s < lens.size; ++s) {
    std::int64_t low = -1;
    std::int64_t high = -1;
    for (std::int64_t j = 0; j < lens[s]; ++j) {
      low = std::min(low, slot_of(s, j));
      high = std::max(high, slot_of(s, j));
    }
    if (low >= -1 && high <= highest) continue;
    for (std::int64_t j = 0; j < lens[s]; ++j) {
      const std::int64_t slot = slot_of(s, j);
      require(slot >= -1 && slot <= highest, name, ": sequence ", s, ": key ", j, " has slot ",
              slot, ", must be in -1..", highest);
    }
  }
}

// Block tables from slots. REQUIRES: require_read_slots.
template <class SlotOf>
BlockTables block_tables(const char* name, SlotOf slot_of, int block_size, BatchStorage& storage) {
  const ArrayView<std::int32_t> lens(storage.lens);
  std::int32_t* begins = resize_array(storage.table_begins, lens.size + 1);
  std::int64_t total = 0;
  for (std::int64_t s = 0; s <= lens.size; ++s) {
    require(total <= kInt32Max, name, ": blocks before sequence ", s, " are ", total,
            ", must be <= ", kInt32Max);
    begins[s] = narrow(total);
    if (s < lens.size) total += num_blocks_of(lens[s], block_size);
  }
  std::int32_t* indices = resize_array(storage.table, total);
  for (std::int64_t s = 0; s < lens.size; ++s) {
    const std::int64_t odd = first_misaligned(slot_of, s, lens[s], block_size);
    require(odd == lens[s], name, ": sequence ", s, ": key ", odd, " has slot ",
            odd < lens[s] ? slot_of(s, odd) : -1, ", not aligned to block_size ", block_size);
    for (std::int64_t j = 0; j < lens[s]; j += block_size) {
      const std::int64_t slot = slot_of(s, j);
      *indices++ = narrow(slot < 0 || block_size == 1 ? slot : slot / block_size);
    }
  }
  return BlockTables::indexed(storage.table_begins, storage.table);
}

// The slot of every key in one array.
struct ListedSlots {
  const std::int64_t* slots;   // [begins.back()]
  const std::int32_t* begins;  // [num_sequences + 1]
  std::int64_t operator()(std::int64_t s, std::int64_t j) const { return slots[begins[s] + j]; }
};

// Checks the metadata and finds its slots; kv lengths go to `lens`.
ListedSlots open_token_slots(const TokenSlotMetadata& metadata, int block_size,
                             std::vector<std::int32_t>& lens) {
  require_host_array("kv_begins", metadata.kv_begins);
  require(metadata.kv_begins.size >= 1, "kv_begins: size is 0, must be >= 1");
  const std::int64_t num_sequences = metadata.kv_begins.size - 1;
  const std::int64_t num_keys = require_offsets("kv_begins", metadata.kv_begins, num_sequences);
  require_offsets("query_begins", metadata.query_begins, num_sequences);
  require_host_array("read_slots", metadata.read_slots);
  require_slots("write_slots", metadata.write_slots);
  const bool all_new = metadata.read_slots.empty();
  const ArrayView<std::int64_t>& slots = all_new ? metadata.write_slots : metadata.read_slots;
  const char* name = all_new ? "write_slots (no read_slots)" : "read_slots";
  require(slots.size >= num_keys, name, ": size is ", slots.size, ", must be >= ", num_keys);
  std::int32_t* out = resize_array(lens, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    out[s] = metadata.kv_begins[s + 1] - metadata.kv_begins[s];
    require(!all_new || num_keys == 0 || metadata.kv_begins[s + 1] == metadata.query_begins[s + 1],
            "no read_slots: sequence ", s, ": keys end at ", metadata.kv_begins[s + 1],
            ", must be the end of its queries ", metadata.query_begins[s + 1]);
  }
  const ListedSlots listed{slots.data, metadata.kv_begins.data};
  require_read_slots(name, listed, lens, block_size);
  return listed;
}

// Rows of slots, picked by request.
struct RequestSlots {
  const std::int32_t* req_to_token;      // [num_requests, stride]
  const std::int64_t* req_pool_indices;  // [num_sequences]
  std::int64_t stride;
  std::int64_t operator()(std::int64_t s, std::int64_t j) const {
    return req_to_token[req_pool_indices[s] * stride + j];
  }
};

RequestSlots open_sglang(const SglangMetadata& metadata, int block_size,
                         std::vector<std::int32_t>& lens) {
  require_host_array("req_to_token", metadata.req_to_token);
  require_host_array("req_pool_indices", metadata.req_pool_indices);
  require_host_array("seq_lens", metadata.seq_lens);
  require_slots("out_cache_loc", metadata.out_cache_loc);
  const std::int64_t num_sequences = metadata.seq_lens.size;
  require(num_sequences <= kInt32Max, "seq_lens: size is ", num_sequences,
          ", must be <= ", kInt32Max);
  const std::int64_t stride = metadata.req_to_token_stride;
  require(stride >= 0, "req_to_token: stride is ", stride, ", must be >= 0");
  require_size("req_pool_indices", metadata.req_pool_indices, num_sequences);
  const std::int64_t num_requests = stride == 0 ? kInt32Max : metadata.req_to_token.size / stride;
  const std::int64_t longest = std::min(stride, kInt32Max);
  std::int32_t* out = resize_array(lens, num_sequences);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const std::int64_t request = metadata.req_pool_indices[s];
    const std::int64_t seq_len = metadata.seq_lens[s];
    require(request >= 0 && request < num_requests, "sequence ", s, ": req_pool_index is ", request,
            ", must be in 0..", num_requests - 1);
    require(seq_len >= 0 && seq_len <= longest, "sequence ", s, ": seq_len is ", seq_len,
            ", must be in 0..", longest);
    out[s] = narrow(seq_len);
  }
  const RequestSlots slots{metadata.req_to_token.data, metadata.req_pool_indices.data, stride};
  require_read_slots("req_to_token", slots, lens, block_size);
  return slots;
}

// Offsets from lengths.
ArrayView<std::int32_t> extend_offsets(const ArrayView<std::int32_t>& extend_seq_lens,
                                       std::int64_t num_sequences, BatchStorage& storage) {
  require_host_array("extend_seq_lens", extend_seq_lens);
  if (extend_seq_lens.empty()) return one_query_each(num_sequences, storage);
  require_size("extend_seq_lens", extend_seq_lens, num_sequences);
  std::int32_t* offsets = resize_array(storage.query_begins, num_sequences + 1);
  std::int64_t row = 0;
  offsets[0] = 0;
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    require(extend_seq_lens[s] >= 0, "sequence ", s, ": extend_seq_len is ", extend_seq_lens[s],
            ", must be >= 0");
    row += extend_seq_lens[s];
    require(row <= kInt32Max, "sequence ", s, ": query rows end at ", row,
            ", must be <= ", kInt32Max);
    offsets[s + 1] = narrow(row);
  }
  return storage.query_begins;
}

// Writes the slot of every key of a sequence, -1 where the block was released. A division for each
// block, not each key. REQUIRES: check_structure, check_table_lengths.
template <class T>
void write_slots_of(const BatchView& batch, int block_size, std::int64_t s, T* out) {
  const std::int64_t kv_len = batch.kv.lens[s];
  for (std::int64_t begin = 0; begin < kv_len; begin += block_size) {
    const std::int64_t end = std::min(begin + block_size, kv_len);
    const std::int64_t first = key_slot(batch.kv.blocks, block_size, s, begin);
    require(first <= std::numeric_limits<T>::max() - (end - 1 - begin), "sequence ", s, ": key ",
            end - 1, " has slot ", first + (end - 1 - begin),
            ", must be <= ", std::numeric_limits<T>::max());
    for (std::int64_t j = begin; j < end; ++j) {
      out[j] = static_cast<T>(first < 0 ? -1 : first + (j - begin));
    }
  }
}

}  // namespace

BatchView from_token_slots(const TokenSlotMetadata& metadata, int block_size,
                           BatchStorage& storage) {
  const ListedSlots slots = open_token_slots(metadata, block_size, storage.lens);
  BatchView batch;
  batch.queries = QueryRanges::packed(metadata.query_begins);
  batch.kv.lens = storage.lens;
  batch.kv.blocks = block_tables("read_slots", slots, block_size, storage);
  batch.kv.slots = metadata.write_slots;
  return batch;
}

TokenSlotMetadata to_token_slots(const BatchView& batch, int block_size, BatchStorage& storage) {
  check_structure(batch);
  check_table_lengths(batch, block_size);
  refuse_tree_mask("token-slot", batch);
  const std::int64_t num_sequences = batch.num_sequences();
  TokenSlotMetadata metadata;
  metadata.query_begins = pack_queries("token-slot metadata", batch, storage);
  std::int32_t* begins = resize_array(storage.table_begins, num_sequences + 1);
  std::int64_t num_keys = 0;
  begins[0] = 0;
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    num_keys += batch.kv.lens[s];
    require(num_keys <= kInt32Max, "sequence ", s, ": keys end at ", num_keys,
            ", must be <= ", kInt32Max);
    begins[s + 1] = narrow(num_keys);
  }
  std::int64_t* slots = resize_array(storage.slots, num_keys);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    write_slots_of(batch, block_size, s, slots + begins[s]);
  }
  metadata.kv_begins = storage.table_begins;
  metadata.read_slots = storage.slots;
  metadata.write_slots = batch.kv.slots;
  return metadata;
}

int aligned_block_size(const TokenSlotMetadata& metadata, int max_block_size,
                       BatchStorage& storage) {
  const ListedSlots slots = open_token_slots(metadata, max_block_size, storage.lens);
  return largest_aligned(slots, storage.lens, max_block_size);
}

BatchView from_sglang(const SglangMetadata& metadata, int block_size, BatchStorage& storage) {
  const RequestSlots slots = open_sglang(metadata, block_size, storage.lens);
  BatchView batch;
  batch.queries = QueryRanges::packed(
      extend_offsets(metadata.extend_seq_lens, metadata.seq_lens.size, storage));
  batch.kv.lens = storage.lens;
  batch.kv.blocks = block_tables("req_to_token", slots, block_size, storage);
  batch.kv.slots = metadata.out_cache_loc;
  return batch;
}

SglangMetadata to_sglang(const BatchView& batch, int block_size, BatchStorage& storage) {
  check_structure(batch);
  check_table_lengths(batch, block_size);
  refuse_tree_mask("SGLang", batch);
  const std::int64_t num_sequences = batch.num_sequences();
  const ArrayView<std::int32_t> offsets = pack_queries("SGLang", batch, storage);
  SglangMetadata metadata;
  for (const std::int32_t kv_len : batch.kv.lens) {
    metadata.req_to_token_stride = std::max<std::int64_t>(metadata.req_to_token_stride, kv_len);
  }
  std::int32_t* q_lens = resize_array(storage.query_ends, num_sequences);
  std::int64_t* rows = resize_array(storage.rows, num_sequences);
  std::int64_t* seq_lens = resize_array(storage.lens_i64, num_sequences);
  std::int32_t* tokens = resize_array(storage.table, num_sequences * metadata.req_to_token_stride);
  for (std::int64_t s = 0; s < num_sequences; ++s, tokens += metadata.req_to_token_stride) {
    const std::int64_t kv_len = batch.kv.lens[s];
    q_lens[s] = offsets[s + 1] - offsets[s];
    rows[s] = s;
    seq_lens[s] = kv_len;
    write_slots_of(batch, block_size, s, tokens);
    std::fill(tokens + kv_len, tokens + metadata.req_to_token_stride, 0);
  }
  metadata.req_to_token = storage.table;
  metadata.req_pool_indices = storage.rows;
  metadata.seq_lens = storage.lens_i64;
  metadata.extend_seq_lens = storage.query_ends;
  metadata.out_cache_loc = batch.kv.slots;
  return metadata;
}

int aligned_block_size(const SglangMetadata& metadata, int max_block_size, BatchStorage& storage) {
  const RequestSlots slots = open_sglang(metadata, max_block_size, storage.lens);
  return largest_aligned(slots, storage.lens, max_block_size);
}

}  // namespace quire
