// SPDX-License-Identifier: Apache-2.0
// The C interface: swaps, copies and arrays of one step, and the state of a block manager.
#pragma once

#include "quire/c/base.h"
#include "quire/c/block_manager.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

// To the host and back; `swapped` is 0 if blocks are missing, and nothing has changed.
QUIRE_API quire_status quire_block_manager_can_swap_out(const quire_block_manager* manager,
                                                        uint64_t sequence, int32_t* can_swap);
QUIRE_API quire_status quire_block_manager_swap_out(quire_block_manager* manager, uint64_t sequence,
                                                    int32_t* swapped);
// QUIRE_ADMIT_NOW: with room for so many tokens to be appended then, above the watermark.
QUIRE_API quire_status quire_block_manager_can_swap_in(const quire_block_manager* manager,
                                                       uint64_t sequence, int64_t num_tokens,
                                                       int32_t* status);
QUIRE_API quire_status quire_block_manager_swap_in(quire_block_manager* manager, uint64_t sequence,
                                                   int32_t* swapped);
QUIRE_API quire_status quire_block_manager_num_blocks_to_swap_in(const quire_block_manager* manager,
                                                                 uint64_t sequence,
                                                                 int64_t num_tokens, int32_t pool,
                                                                 int64_t* num_blocks);

// Copies of one group, in no particular order. Host ids and device ids are different spaces.
typedef struct quire_group_copies {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const int32_t* on_device;  // [num_on_device, 2] source block, destination block
  int64_t num_on_device;
  const int32_t* to_host;  // [num_to_host, 2]
  int64_t num_to_host;
  const int32_t* to_device;  // [num_to_device, 2]
  int64_t num_to_device;
  const int32_t* on_host;  // [num_on_host, 2]
  int64_t num_on_host;
} quire_group_copies;

// The copies since the last call, to be run before the step: `num_copies` in all groups. Valid
// until the next take_copies. Their blocks stay untouched until complete_copies(ticket), which
// covers all earlier tickets too.
QUIRE_API quire_status quire_block_manager_take_copies(quire_block_manager* manager,
                                                       uint64_t* ticket, int64_t* num_copies);
QUIRE_API quire_status quire_block_manager_group_copies(const quire_block_manager* manager,
                                                        int32_t group, quire_group_copies* copies);
QUIRE_API quire_status quire_block_manager_complete_copies(quire_block_manager* manager,
                                                           uint64_t ticket);

// How long the arrays of a step must be.
typedef struct quire_step_sizes {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_blocks;
  int64_t max_blocks;  // of one sequence
  int64_t num_slots;
} quire_step_sizes;
QUIRE_API quire_status quire_block_manager_step_sizes(const quire_block_manager* manager,
                                                      int32_t group,
                                                      const uint64_t* sequences,  // [num_sequences]
                                                      int64_t num_sequences,
                                                      quire_step_sizes* sizes);

// Where write_step writes. Tables are padded if row_stride > 0, indexed if begins are given.
typedef struct quire_step_arrays {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int32_t* query_begins;   // [num_sequences + 1] of appended tokens, or NULL
  int32_t* kv_lens;        // [num_sequences]
  int32_t* block_indices;  // [num_block_indices] >= num_sequences * row_stride, or num_blocks
  int64_t num_block_indices;
  int64_t row_stride;
  int32_t* table_begins;  // [num_sequences + 1], or NULL
  int64_t* slots;         // [num_slots], in the order of the sequences
  int64_t num_slots;
} quire_step_arrays;
QUIRE_API quire_status quire_block_manager_write_step(const quire_block_manager* manager,
                                                      int32_t group,
                                                      const uint64_t* sequences,  // [num_sequences]
                                                      int64_t num_sequences,
                                                      const quire_step_arrays* arrays);

typedef struct quire_sequence_info {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_tokens;    // committed
  int64_t num_appended;  // and not committed
  int32_t is_swapped;
  int32_t reserved;
} quire_sequence_info;
QUIRE_API quire_status quire_block_manager_sequence(const quire_block_manager* manager,
                                                    uint64_t sequence, quire_sequence_info* info);
// blocks receives [num_blocks], valid until the manager changes; host ids if swapped.
QUIRE_API quire_status quire_block_manager_block_table(const quire_block_manager* manager,
                                                       uint64_t sequence, int32_t group,
                                                       const int32_t** blocks, int64_t* num_blocks);

// Nothing computed so far is ever found again.
QUIRE_API quire_status quire_block_manager_reset_prefix_cache(quire_block_manager* manager);
// Shrinking waits for blocks in use: `resized` is 0 until then.
QUIRE_API quire_status quire_block_manager_resize(quire_block_manager* manager, int32_t pool,
                                                  int64_t num_blocks, int32_t* resized);
// Memory for so many sequences of so many tokens, so that calls need not allocate.
QUIRE_API quire_status quire_block_manager_reserve(quire_block_manager* manager,
                                                   int64_t num_sequences, int64_t num_tokens_each);

// Counts since the start; blocks of prompts count once, not once per layer group.
typedef struct quire_block_stats {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_sequences;
  int64_t num_swapped;  // of num_sequences
  int64_t num_admitted;
  int64_t num_prompt_tokens;
  int64_t num_prompt_blocks;  // full ones
  int64_t num_hit_blocks;     // of num_prompt_blocks
  int64_t num_hit_tokens;
  int64_t num_stored;
  int64_t num_duplicates;
  int64_t num_evictions;
  int64_t num_copies;
  int64_t num_swapped_out;
  int64_t num_swapped_in;
  int64_t num_swap_hits;
  int64_t num_rejected;
} quire_block_stats;
typedef struct quire_pool_stats {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_usable;  // free + evictable + in use, unless a shrink waits
  int64_t num_free;
  int64_t num_evictable;
  int64_t num_in_use;
  int64_t num_host_usable;
  int64_t num_host_in_use;
  double fragmentation;  // share of the slots of blocks in use that hold no token yet
} quire_pool_stats;
QUIRE_API quire_status quire_block_manager_stats(const quire_block_manager* manager,
                                                 quire_block_stats* stats);
QUIRE_API quire_status quire_block_manager_pool_stats(const quire_block_manager* manager,
                                                      int32_t pool, quire_pool_stats* stats);
// QUIRE_INTERNAL naming what is wrong.
QUIRE_API quire_status quire_block_manager_validate(const quire_block_manager* manager);
// The whole state, for people; to be freed by quire_text_free.
QUIRE_API quire_status quire_block_manager_dump(const quire_block_manager* manager, char** text);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
