// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels that store new K and V and copy blocks. Trivially copyable;
// all pointers are of the device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/divider.h"
#include "gpu/kernel_args.h"
#include "quire/backend.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::gpu {

inline constexpr int kAppendThreads = 256;
// Elements that a thread takes of a row at a time: 16 bytes of what comes in.
inline constexpr int kAppendChunk = 8;
// Chunks of one row, and rows, that a thread has in flight. Where every row has a scale, fewer
// lanes share it: each of them finds the scale.
QUIRE_HOST_DEVICE constexpr int append_chunks(bool sets_scales) {
  return sets_scales ? 4 : 2;
}
QUIRE_HOST_DEVICE constexpr int append_rows_in_flight(bool sets_scales) {
  return sets_scales ? 1 : 2;
}

// K or V where rows of both sides lie side by side on borders of whole chunks. Strides in bytes,
// those of scales in elements.
struct AppendSide {
  const unsigned char* from = nullptr;
  unsigned char* to = nullptr;
  float* scales = nullptr;
  std::int64_t from_token = 0;
  std::int64_t from_head = 0;
  std::int64_t to_block = 0;
  std::int64_t to_head = 0;
  std::int64_t to_token = 0;
  KvStrides scale_strides;
  std::int32_t num_chunks = 0;  // of a row
  std::int32_t num_pieces = 1;  // of a row, each of append_chunks for every lane
  Divider by_pieces;
};

// A column is a piece of a row of K or V of one head, taken by 2^lane_bits lanes. In a pass a
// thread block takes columns_per_pass columns of tokens_per_pass tokens; an item is `rows` passes
// over tokens that follow each other.
struct AppendVectors {
  AppendSide sides[2];         // K, V
  std::int32_t num_items = 0;  // 0: these rows must be taken element by element
  std::int32_t num_tokens = 0;
  std::int32_t lane_bits = 0;
  std::int32_t rows = 1;     // <= append_rows_in_flight
  bool sets_scales = false;  // one for each row
  std::int32_t num_columns = 0;
  std::int32_t num_k_columns = 0;
  std::int32_t columns_per_pass = 1;
  std::int32_t tokens_per_pass = 1;
  std::int32_t num_column_tiles = 1;
  std::int32_t block_size = 1;
  Divider by_columns_per_pass;
  Divider by_column_tiles;
  Divider by_block_size;
};

// Row i of new K and V goes to slot i.
struct AppendArgs {
  AppendVectors vectors;
  // Thread blocks of append_vectors that run at once: these may begin while the last grid ends.
  std::int32_t num_resident_blocks = 0;
  ArrayView<std::int64_t> slots;
  std::int64_t num_slots = 0;
  PlanCounts* counts = nullptr;
  std::uint64_t* host_fault = nullptr;
  NewKv new_kv;
  KvCacheView cache;
};

inline constexpr int kCopyThreads = 256;
// 16 bytes each, of one thread.
inline constexpr int kCopyInFlight = 4;
// Bytes that one thread block copies at a time.
inline constexpr std::int32_t kCopyPiece = kCopyThreads * kCopyInFlight * 16;

// One layer, before and after.
struct LayerPair {
  KvCacheView src;
  KvCacheView dst;
};

// What one tensor holds of every block without a gap: K, V, both, or their scales. Bytes.
struct CopyPart {
  const unsigned char* from = nullptr;
  unsigned char* to = nullptr;
  std::int64_t from_block = 0;
  std::int64_t to_block = 0;
  std::int64_t size_bytes = 0;  // of one block
};

// Parts of equal layouts, in pieces.
struct CopyRecordArgs {
  // Lists that are no longer travel with the launch.
  static constexpr int kFewParts = 64;
  static constexpr int kFewCopies = 1024;

  std::int32_t num_copies = 0;
  std::int32_t num_parts = 0;
  std::int32_t num_pieces = 1;  // of the largest part
  Divider by_copies;
  Divider by_pieces;
  const BlockCopy* copies = nullptr;  // [num_copies], or null: few_copies and few_parts
  const CopyPart* parts = nullptr;    // [num_parts]
  CopyPart few_parts[kFewParts];
  BlockCopy few_copies[kFewCopies];
};

// Element by element, for blocks of all layers.
struct CopyArgs {
  const LayerPair* layers = nullptr;  // [num_layers]
  const BlockCopy* copies = nullptr;  // [num_copies]
  std::int32_t num_layers = 0;
  std::int32_t num_copies = 0;
  std::int32_t first_token = 0;  // of a region; all tokens of a block otherwise
  std::int32_t num_tokens = 0;
};

static_assert(std::is_trivially_copyable_v<AppendArgs> && std::is_trivially_copyable_v<CopyArgs> &&
              std::is_trivially_copyable_v<CopyRecordArgs>);
static_assert(sizeof(AppendArgs) <= 4096 && sizeof(CopyRecordArgs) <= 16384, "kernel arguments");

}  // namespace quire::gpu
