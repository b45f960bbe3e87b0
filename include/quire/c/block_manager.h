// SPDX-License-Identifier: Apache-2.0
// The C interface: which sequence holds which blocks (quire/block_manager.h in C++, which has the
// invariants). Host memory only; not thread-safe.
//
//   quire_block_manager_admit(manager, prompt, NULL, &admission);      // shares cached blocks
//   quire_block_manager_append(manager, id, num_tokens, &appended);    // slots for the step
//   quire_block_manager_take_copies(manager, &ticket, &num_copies);    // run these before the step
//   quire_block_manager_write_step(manager, group, ids, n, &arrays);   // tables and slots
//   ... append and attend ...; quire_block_manager_complete_copies(manager, ticket);
//   quire_block_manager_commit(manager, id, tokens, num_tokens);       // from now on shareable
//
// A manager that a scheduler drives (quire_scheduler_create) takes no call here that changes it.
#pragma once

#include "quire/c/attention.h"
#include "quire/c/base.h"
#include "quire/c/prompt.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_block_manager quire_block_manager;

// Layers with one table per sequence: those of one quire_attention_spec.
typedef struct quire_layer_group {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int32_t pool;        // groups of one pool draw on the same block ids
  int32_t alignment;   // QUIRE_UNALIGNED: the table holds the encoder's tokens
  int32_t not_causal;  // as in quire_attention_spec: windows and chunks release blocks
  int32_t has_window_left;
  int64_t window_left;
  int64_t chunk;
  int64_t num_sink_tokens;  // the first tokens stay although the window has passed
} quire_layer_group;

typedef struct quire_block_pool {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_blocks;        // of the cache, the null block included
  int64_t num_host_blocks;   // for swapping, the null block included; 0: none
  int64_t watermark_blocks;  // admission leaves this many for sequences that are running
} quire_block_pool;

// What a router outside wants to know of the prefix cache.
enum { QUIRE_EVENT_STORED = 0, QUIRE_EVENT_REMOVED = 1, QUIRE_EVENT_CLEARED = 2 };
typedef struct quire_kv_event {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int32_t kind;  // QUIRE_EVENT_STORED, ...
  int32_t group;
  uint8_t digest[32];     // stored, removed
  uint8_t parent[32];     // stored: the block before, or the root of its scope
  const int32_t* tokens;  // stored: [num_tokens], valid during the call
  int64_t num_tokens;     // block_size, or 0 where the manager keeps no tokens
} quire_kv_event;

typedef struct quire_block_manager_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const quire_block_pool* pools;  // [num_pools]
  int64_t num_pools;
  const quire_layer_group* groups;  // [num_groups]
  int64_t num_groups;
  // Called inside calls of the manager, in order; must not call it, throw or jump. NULL: none.
  void (*on_event)(void* context, const quire_kv_event* event);
  void* event_context;
  int32_t block_size;         // tokens, in all groups; 0: 16
  int32_t no_prefix_cache;    // 1: nothing is shared
  int32_t share_tails;        // 1: partly filled last blocks are found too
  int32_t compare_tokens;     // 1: on every hit, not trusting SHA-256
  int32_t digest_bits;        // 0: 256; fewer only to test collisions
  int32_t validate_interval;  // debug builds: changes between checks; 0: 256, -1: never
} quire_block_manager_options;

QUIRE_API quire_status quire_block_manager_create(const quire_block_manager_options* options,
                                                  quire_block_manager** manager);
QUIRE_API quire_status quire_block_manager_destroy(quire_block_manager* manager);

// Now, when others have given back blocks, or not even alone.
enum { QUIRE_ADMIT_NOW = 0, QUIRE_ADMIT_LATER = 1, QUIRE_ADMIT_NEVER = 2 };
typedef struct quire_admit_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_lookahead;     // tokens beyond the prompt that should have room
  int64_t max_chunk;         // most tokens per append; 0: any
  int64_t num_cross_tokens;  // of the encoder; such a sequence does not share
} quire_admit_options;
typedef struct quire_admission {
  uint32_t struct_bytes;
  uint32_t struct_version;
  uint64_t sequence;          // its id; 0: not admitted
  int64_t num_cached_tokens;  // already there: begin to compute here
  int32_t status;             // QUIRE_ADMIT_NOW, ...
  int32_t reserved;
} quire_admission;
// Options may be NULL. Ids of sequences are not reused: that of a freed one is an error.
QUIRE_API quire_status quire_block_manager_can_admit(const quire_block_manager* manager,
                                                     const quire_prompt* prompt,
                                                     const quire_admit_options* options,
                                                     int32_t* status);
QUIRE_API quire_status quire_block_manager_admit(quire_block_manager* manager,
                                                 const quire_prompt* prompt,
                                                 const quire_admit_options* options,
                                                 quire_admission* admission);
// Tokens that admit would find.
QUIRE_API quire_status quire_block_manager_num_cached_tokens(const quire_block_manager* manager,
                                                             const quire_prompt* prompt,
                                                             int64_t* num_tokens);
// Blocks of a pool that admit and then append of the whole prompt and look-ahead would take.
QUIRE_API quire_status quire_block_manager_num_blocks_to_admit(const quire_block_manager* manager,
                                                               const quire_prompt* prompt,
                                                               const quire_admit_options* options,
                                                               int32_t pool, int64_t* num_blocks);

// Slots for the next num_tokens; appended is 0 if blocks are missing, and nothing has changed.
QUIRE_API quire_status quire_block_manager_can_append(const quire_block_manager* manager,
                                                      uint64_t sequence, int64_t num_tokens,
                                                      int32_t* can_append);
QUIRE_API quire_status quire_block_manager_append(quire_block_manager* manager, uint64_t sequence,
                                                  int64_t num_tokens, int32_t* appended);
QUIRE_API quire_status quire_block_manager_num_blocks_to_append(const quire_block_manager* manager,
                                                                uint64_t sequence,
                                                                int64_t num_tokens, int32_t pool,
                                                                int64_t* num_blocks);
// The first of the appended slots now hold K and V of tokens [num_tokens]; NULL: of the next tokens
// of the prompt. REQUIRES: no copies wait to be taken.
QUIRE_API quire_status quire_block_manager_commit(quire_block_manager* manager, uint64_t sequence,
                                                  const int32_t* tokens, int64_t num_tokens);
// Gives up the last num_tokens appended and not committed ones.
QUIRE_API quire_status quire_block_manager_rollback(quire_block_manager* manager, uint64_t sequence,
                                                    int64_t num_tokens);
// A second sequence with the same tokens; the first to write a shared block gets a copy.
QUIRE_API quire_status quire_block_manager_fork(quire_block_manager* manager, uint64_t sequence,
                                                uint64_t* forked);
QUIRE_API quire_status quire_block_manager_free_sequence(quire_block_manager* manager,
                                                         uint64_t sequence);
// Cuts a sequence to at most num_tokens; `left` is what is left of it, perhaps less.
QUIRE_API quire_status quire_block_manager_truncate(quire_block_manager* manager, uint64_t sequence,
                                                    int64_t num_tokens, int64_t* left);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
