// SPDX-License-Identifier: Apache-2.0
// What the host hands to kernels, and what kernels hand to each other. Trivially copyable; all
// pointers are of the device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/divider.h"
#include "plan/plan.h"
#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "quire/batch.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::gpu {

// A work item of the plan with all that a kernel would otherwise look up in four places, one after
// the other. One per (unit, split); a kv head each.
struct alignas(16) Item {
  std::int32_t sequence;
  std::int32_t kv_head;
  std::int32_t first_row;  // packed: token * group + head in group
  std::int16_t num_rows;
  bool all_visible;  // every row sees every key of the item, by mask and alignment
  std::int32_t key_begin;
  std::int32_t key_end;
  std::int32_t split;
  std::int32_t num_splits;
  std::int32_t q_begin;  // row of Q of the sequence's first token
  std::int32_t q_len;
  std::int32_t kv_len;
  std::int32_t merge;        // index of the counter of the unit
  std::int64_t partial_row;  // of (split, kv_head, first_row)
  std::int64_t table_begin;  // into BlockTables::indices; ragged: the row of key 0
};
static_assert(sizeof(Item) == 64);

// Keys that follow each other in one block wherever block sizes are multiples of it.
inline constexpr int kKeysPerId = 16;

// What a thread block needs to begin a run: its first item and, where kKeysPerId keys share a
// block, the ids of the blocks of its first keys, from a multiple of kFirstIdKeys on. Of keys that
// the item has not they are 0.
inline constexpr int kFirstIds = 32;
inline constexpr int kFirstIdKeys = 32;
struct alignas(64) RunStart {
  Item item;
  std::int32_t ids[kFirstIds];
};

// Items go by the packed rows of their sequence to one of three kernels: up to kFewRows and up to
// kStreamRows to the two that stream keys, the others to the one that shares them among many rows.
enum class ItemList : std::uint8_t { kFew, kStream, kTile };
inline constexpr int kNumLists = 3;
inline constexpr int kNumRunLists = kNumLists - 1;  // all but the last
inline constexpr int kFewRows = 8;
inline constexpr int kStreamRows = 16;
QUIRE_HOST_DEVICE constexpr ItemList item_list(std::int64_t num_rows) {
  if (num_rows <= kFewRows) return ItemList::kFew;
  return num_rows <= kStreamRows ? ItemList::kStream : ItemList::kTile;
}
// Rows of an item of all others, by the dims of the kernel: as many as its registers hold.
QUIRE_HOST_DEVICE constexpr int tile_rows(int dims) {
  return dims == 256 ? 64 : 128;
}

// The first thing found wrong with metadata that lies on the device: what it is in the upper eight
// bits, the sequence in the next 24, the value's position in the rest. Smaller wins.
enum class Fault : std::uint8_t { kQueryRange = 1, kKvLen, kTotal, kBlock, kSlot, kNone = 255 };
inline constexpr std::uint64_t kNoFault = ~std::uint64_t{0};

QUIRE_HOST_DEVICE constexpr std::uint64_t fault_code(Fault fault, std::int64_t sequence,
                                                     std::int64_t position) {
  return static_cast<std::uint64_t>(fault) << 56 |
         (static_cast<std::uint64_t>(sequence) & 0xffffff) << 32 |
         (static_cast<std::uint64_t>(position) & 0xffffffff);
}

// What the plan leaves behind, in the workspace.
struct PlanCounts {
  std::int32_t items[kNumLists] = {};
  // For kernels that take items one by one, without runs: the next item, and thread blocks that
  // found no more. The last of these sets both back.
  std::int32_t next[kNumLists] = {};
  std::int32_t done[kNumLists] = {};
  std::uint64_t fault = kNoFault;
};

struct PlanArgs {
  PlanSpec spec;
  BatchView batch;
  BatchBounds bounds;
  std::int64_t max_items = 0;         // room in each list
  std::int64_t max_merges = 0;        // room for counters
  std::int64_t max_partial_rows = 0;  // room for partial results
  Item* lists[kNumLists] = {};        // [max_items] each
  // Items of the lists of few rows go to thread blocks in runs (run_cuts.h): run r is the items
  // from runs[r] to runs[r + 1].
  std::int32_t* runs[kNumRunLists] = {};     // [num_runs + 1] each
  RunStart* starts[kNumRunLists] = {};       // [num_runs] each
  std::int32_t num_runs[kNumRunLists] = {};  // 0: nobody asks for them
  std::int32_t block_size = 1;               // of the cache
  Divider by_block_size;
  std::int32_t* merge_counters = nullptr;  // [max_merges], zeroed
  PlanCounts* counts = nullptr;
  std::uint64_t* host_fault = nullptr;  // in host memory, for the next call to find
};

// One layer's attention over the items of the plan.
struct AttendArgs {
  BatchView batch;
  KvCacheView cache;
  Mask mask;
  Alignment alignment = Alignment::kAligned;
  std::int32_t group = 1;
  Divider by_group;
  std::int32_t num_kv_heads = 1;
  std::int32_t block_shift = -1;  // block_size is 1 << block_shift, or no power of two
  AttentionParams params;
  TensorView q;
  bool q_in_sixteens = false;    // rows of Q can be read 16 bytes at a time
  bool out_in_sixteens = false;  // 16-bit rows of the output can be written so
  // Blocks of 16 keys or another power of two above, no tree, and rows as long as those of the
  // kernel: tiles but for those at an end are runs of 16 whole rows.
  bool has_simple_tiles = false;
  bool has_equal_strides = false;  // K and V lie alike
  // K and V are more than the cache that all processors share would hold until the next call: they
  // shall not drive out what is needed often, such as the plan, partial results and the code.
  bool keys_exceed_cache = false;
  AttentionOutput output;

  const Item* items = nullptr;
  const std::int32_t* num_items = nullptr;
  std::int32_t* next_item = nullptr;
  std::int32_t* done = nullptr;
  // The thread blocks that share next_item may be of two grids.
  bool is_first_grid = true;
  std::int32_t num_first_blocks = 0;  // of the first one
  std::int32_t num_blocks = 0;        // of both
  // The last grid was launched by the same call: it need not have ended.
  bool joins_last_grid = false;
  // No grid of the same call follows, nor came before: the next one may come when all keys have
  // been asked for, and this one may ask for its first ones early.
  bool ends_call = false;
  const std::int32_t* runs = nullptr;  // of the list, a run for each thread block
  const RunStart* starts = nullptr;    // of each
  std::int32_t* merge_counters = nullptr;
  const std::uint64_t* fault = nullptr;
  float* partial_values = nullptr;  // [partial_rows, value_stride]
  float* partial_sums = nullptr;    // [partial_rows, 2]: maximum in powers of 2, sum
  std::int64_t value_stride = 0;    // floats, a multiple of 4
};

struct PartialView {
  const void* out = nullptr;
  const float* lse = nullptr;
  std::int64_t out_strides[3] = {};
  std::int64_t lse_strides[2] = {};
  DType dtype = DType::kF32;
};

struct MergeArgs {
  static constexpr int kFew = 24;
  PartialView few[kFew];              // travel with the launch
  const PartialView* many = nullptr;  // [num_partials] if there are more
  std::int32_t num_partials = 0;
  ArrayView<float> sinks;
  AttentionOutput output;
};

// Every block id that some row can see must be below num_blocks.
struct CheckArgs {
  BatchView batch;
  BatchBounds bounds;
  Mask mask;
  Alignment alignment = Alignment::kAligned;
  std::int32_t block_size = 1;
  std::int64_t num_blocks = 0;
  PlanCounts* counts = nullptr;
  std::uint64_t* host_fault = nullptr;
};

// Of the probes. `sink` is written only by numbers that cannot be: it keeps the work alive.
struct StreamBytesArgs {
  const void* from = nullptr;  // [size_bytes], a multiple of 16
  void* to = nullptr;          // the same, or null: only read
  std::int64_t size_bytes = 0;
  std::int32_t num_passes = 1;
  std::uint32_t* sink = nullptr;
};
struct MultiplyRateArgs {
  std::int32_t num_steps = 0;
  float* sink = nullptr;
};

static_assert(std::is_trivially_copyable_v<PlanArgs> && std::is_trivially_copyable_v<AttendArgs>);
static_assert(std::is_trivially_copyable_v<MergeArgs> && std::is_trivially_copyable_v<CheckArgs>);
static_assert(sizeof(AttendArgs) <= 4096 && sizeof(PlanArgs) <= 4096 && sizeof(MergeArgs) <= 4096,
              "kernel arguments");

}  // namespace quire::gpu
