// SPDX-License-Identifier: Apache-2.0
// Batches from and to the metadata of other engines, and a batch taken apart into prefill and
// decode. Field names of a client are its own.
//
// from_x gives a batch, to_x the client's arrays. Both point into what they were made from wherever
// that needs no computation, and into the storage otherwise: a result lives as long as both, and
// until the next call that fills the same storage. A storage must not be filled from a result that
// points into it. Storage only grows, so a step of a size seen before allocates nothing.
//
// Host memory only: an array on a device is an error that names it. Arrays are checked in full, in
// 64 bits, before anything is read through them; block ids are not, because blocks that no row sees
// may hold anything (prepare knows the mask and checks them). What the target cannot express is an
// Error(kInvalidArgument) with the reason, never dropped. All functions may be called from any
// thread, with one storage per thread.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/batch.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

// What new K and V a batch stores.
enum class NewKvRows : std::uint8_t {
  kQueries,   // row i of new K and V belongs to query row i: self-attention
  kSeparate,  // rows unrelated to the queries, or none: cross-attention, keys stored earlier
};

// The arrays that a conversion had to compute. Read them through the result.
struct BatchStorage {
  std::vector<std::int32_t> query_begins;
  std::vector<std::int32_t> query_ends;
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> table_begins;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> depths;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> lens_i64;
  std::vector<std::int64_t> tree_begins;
  std::vector<std::uint8_t> tree_bits;
};

// vLLM ------------------------------------------------------------------------------------------

struct VllmMetadata {
  ArrayView<std::int32_t> query_start_loc;  // [num_sequences + 1], from 0
  ArrayView<std::int32_t> seq_lens;         // [num_sequences], new tokens included
  ArrayView<std::int32_t> block_table;      // [>= num_sequences, block_table_stride]
  std::int64_t block_table_stride = 0;      // entries per row
  ArrayView<std::int64_t> slot_mapping;     // [num_new_kv_tokens], -1: do not store
};

// Copies nothing.
QUIRE_API BatchView from_vllm(const VllmMetadata& metadata, int block_size);
// Refuses gaps between query rows, ragged tables and tree masks. Unused entries of a table that had
// to be built are 0, the block that vLLM keeps for this.
QUIRE_API VllmMetadata to_vllm(const BatchView& batch, int block_size, BatchStorage& storage);

// FlashInfer ------------------------------------------------------------------------------------

struct FlashInferMetadata {
  ArrayView<std::int32_t> qo_indptr;  // [num_sequences + 1], from 0; absent: one query per sequence
  ArrayView<std::int32_t> kv_indptr;  // [num_sequences + 1], from 0
  ArrayView<std::int32_t> kv_indices;     // [>= kv_indptr.back()]
  ArrayView<std::int32_t> last_page_len;  // [num_sequences], 1..block_size; no block: not read
};

// The form carries no slots. kQueries: the queries of a sequence are its last positions and are
// stored there, -1 for positions below 0. kSeparate: the batch stores nothing.
QUIRE_API BatchView from_flashinfer(const FlashInferMetadata& metadata, int block_size,
                                    NewKvRows new_kv, BatchStorage& storage);
// Refuses what to_vllm refuses, and slots other than the ones derived above or none at all.
QUIRE_API FlashInferMetadata to_flashinfer(const BatchView& batch, int block_size,
                                           BatchStorage& storage);

// OpenVINO --------------------------------------------------------------------------------------

struct OpenVinoMetadata {
  ArrayView<std::int32_t> past_lens;             // [num_sequences], new tokens excluded
  ArrayView<std::int32_t> subsequence_begins;    // [num_sequences + 1], from 0
  ArrayView<std::int32_t> block_indices;         // [>= block_indices_begins.back()]
  ArrayView<std::int32_t> block_indices_begins;  // [num_sequences + 1], from 0
  std::int32_t max_context_len = 0;              // >= every past_len + q_len
};

// PagedAttention stores every new token behind the past ones, so slots are derived.
QUIRE_API BatchView from_openvino(const OpenVinoMetadata& metadata, int block_size,
                                  BatchStorage& storage);
// Refuses what to_vllm refuses, q_len > kv_len, and slots other than the derived ones: a batch that
// stores nothing cannot be expressed. Tables are cut to the blocks that hold keys, because the
// operation takes the last entry for the current block.
QUIRE_API OpenVinoMetadata to_openvino(const BatchView& batch, int block_size,
                                       BatchStorage& storage);

// Token slots (transformers) --------------------------------------------------------------------

struct TokenSlotMetadata {
  ArrayView<std::int32_t> query_begins;  // [num_sequences + 1], from 0: cu_seq_lens_q
  ArrayView<std::int32_t> kv_begins;     // [num_sequences + 1], from 0: cu_seq_lens_k
  // [>= kv_begins.back()] the slot of every key, sequence by sequence; -1: released, no row sees
  // it. Absent: all keys are new ones, so kv_begins equals query_begins and write_slots has them.
  ArrayView<std::int64_t> read_slots;   // read_index
  ArrayView<std::int64_t> write_slots;  // [num_new_kv_tokens], -1: do not store: write_index
};

// Any list of slots is a batch of block size 1. A larger block size is accepted only if the slots
// prove it: key j lies at offset j % block_size of its block, and the keys of a block lie in one.
// The error names the first key that does not. Slots keep their numbers.
QUIRE_API BatchView from_token_slots(const TokenSlotMetadata& metadata, int block_size,
                                     BatchStorage& storage);
// Ragged tables too (block_size 1). Refuses gaps between query rows and tree masks.
QUIRE_API TokenSlotMetadata to_token_slots(const BatchView& batch, int block_size,
                                           BatchStorage& storage);
// The largest power of two up to `max_block_size` that the slots prove. `storage` is scratch.
QUIRE_API int aligned_block_size(const TokenSlotMetadata& metadata, int max_block_size,
                                 BatchStorage& storage);

// Token slots (SGLang) --------------------------------------------------------------------------

struct SglangMetadata {
  ArrayView<std::int32_t> req_to_token;      // [num_requests, req_to_token_stride]
  std::int64_t req_to_token_stride = 0;      // entries per row
  ArrayView<std::int64_t> req_pool_indices;  // [num_sequences] rows of req_to_token
  ArrayView<std::int64_t> seq_lens;          // [num_sequences], new tokens included
  ArrayView<std::int32_t> extend_seq_lens;   // [num_sequences]; absent: one query per sequence
  ArrayView<std::int64_t> out_cache_loc;     // [num_new_kv_tokens]
};

// As from_token_slots.
QUIRE_API BatchView from_sglang(const SglangMetadata& metadata, int block_size,
                                BatchStorage& storage);
// Row s of req_to_token is sequence s; unused entries are 0, SGLang's slot for this. Refuses what
// to_token_slots refuses, and slots that exceed 32 bits.
QUIRE_API SglangMetadata to_sglang(const BatchView& batch, int block_size, BatchStorage& storage);
QUIRE_API int aligned_block_size(const SglangMetadata& metadata, int max_block_size,
                                 BatchStorage& storage);

// Prefill and decode ----------------------------------------------------------------------------

// Both parts address the same Q, K, V and output rows as the whole batch: their query ranges have
// gaps instead, so no token is copied. Tree masks and depths go along. Move-only: the parts point
// into their storage.
struct BatchSplit {
  BatchView prefill;
  BatchView decode;
  std::vector<std::int32_t> prefill_sequences;  // [prefill.num_sequences()] index in the batch
  std::vector<std::int32_t> decode_sequences;   // [decode.num_sequences()]
  BatchStorage prefill_storage;
  BatchStorage decode_storage;

  BatchSplit() = default;
  BatchSplit(BatchSplit&&) = default;
  BatchSplit& operator=(BatchSplit&&) = default;
};

// Sequences with q_len <= decode_max_q_len (those without queries too) are decode. A part that is
// an unbroken run of sequences points into the batch.
//
// Slots. kQueries: each part has as many slots as the batch, -1 where a row belongs to a sequence
// of the other part; rows of no sequence stay with prefill. So append works on the same K and V,
// once per part or once for the whole batch. REQUIRES: slots for every query row, or none.
// kSeparate: new rows belong to no query; all slots stay with the prefill part, decode has none.
QUIRE_API void split_batch(const BatchView& batch, std::int64_t decode_max_q_len, NewKvRows new_kv,
                           BatchSplit& split);

// The union of two batches over the same rows, ordered by query row: of a split, the batch itself.
// Padded tables join padded, or else indexed; a ragged part joins only a ragged one. Refuses ranges
// that overlap and rows that both parts store.
QUIRE_API BatchView join_batches(const BatchView& prefill, const BatchView& decode,
                                 BatchStorage& storage);

}  // namespace quire
