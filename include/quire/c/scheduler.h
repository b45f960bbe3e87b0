// SPDX-License-Identifier: Apache-2.0
// The C interface: who runs in the next step, continuous batching over a block manager
// (quire/scheduler.h in C++, which has the rules).
//
//   quire_scheduler_submit(scheduler, &request, &id);
//   quire_scheduler_schedule(scheduler, &step);
//   ... run the copies of every stage, then compute ...
//   quire_scheduler_commit(scheduler, &result);
//   for (i...) { quire_scheduler_ready(scheduler, i, &ready); choose a token;
//                quire_scheduler_extend(scheduler, ready.request, &token, 1, NULL, 0); }
//
// submit, cancel and num_unfinished may be called from any thread, everything else from one.
#pragma once

#include "quire/c/base.h"
#include "quire/c/batch.h"
#include "quire/c/block_manager.h"
#include "quire/c/block_step.h"
#include "quire/c/prompt.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_scheduler quire_scheduler;

typedef struct quire_scheduler_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t max_tokens;        // in a step, at least max_sequences; 0: 2048
  int64_t max_sequences;     // in a step, and running; 0: 256
  int64_t max_chunk;         // tokens of one request in a step; 0: max_tokens
  int64_t max_cross_tokens;  // rows of encoders in a step; 0: max_tokens
  int64_t max_length;        // prompt and new tokens of one request; 0: no limit
  int64_t max_total_length;  // of all that run; 0: no limit
  int32_t aging_steps;       // 0: 256; -1: priorities are absolute and may starve
  int32_t prefix_window;     // waiting requests among which the most cached goes first; 0: 1
  int32_t wait_for_shared;   // 1: wait for blocks that a running request is about to compute
  int32_t no_partial;        // 1: preemption never cuts off the end of a sequence
  int32_t no_swap;           // 1: preemption never moves a sequence to the host
  int32_t no_preemption_for_waiting;  // 1: waiting requests take nothing from a lower class
  double token_seconds;  // costs of preemption, see PreemptionOptions; 0: those of an 8B model
  double key_seconds;
  double byte_seconds;
  int64_t token_bytes;
  int64_t (*clock)(void* context);  // nanoseconds, of deadlines; NULL: the steady clock
  void* clock_context;
} quire_scheduler_options;

// Drives the manager from now on: one scheduler per manager. `options` may be NULL.
QUIRE_API quire_status quire_scheduler_create(const quire_scheduler_options* options,
                                              quire_block_manager* manager,
                                              quire_scheduler** scheduler);
QUIRE_API quire_status quire_scheduler_destroy(quire_scheduler* scheduler);

typedef struct quire_request {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const quire_prompt* prompt;  // may be destroyed after the call
  int64_t max_new_tokens;      // 0: the prompt alone is computed
  int64_t deadline_ns;         // in the time of the clock
  int64_t num_cross_tokens;    // of the encoder
  int32_t has_deadline;        // 1: ended by the first step that begins at it or later
  int32_t priority;            // class: lower goes first
} quire_request;
// Any thread. Takes part from the next schedule on; ids count from 1 and are never reused.
QUIRE_API quire_status quire_scheduler_submit(quire_scheduler* scheduler,
                                              const quire_request* request, uint64_t* id);
// Any thread. Honoured by the next schedule; of no effect on a request that has ended.
QUIRE_API quire_status quire_scheduler_cancel(quire_scheduler* scheduler, uint64_t id);
// Any thread: submitted and not yet ended.
QUIRE_API quire_status quire_scheduler_num_unfinished(const quire_scheduler* scheduler,
                                                      int64_t* num_requests);

// The work of one step. Arrays are valid until the next schedule.
typedef struct quire_scheduled_batch {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_sequences;  // 0: nothing to compute; there may still be copies, and results
  int64_t num_tokens;
  int64_t num_cross_rows;
  int64_t num_copy_stages;
  const int32_t* tokens;     // [num_tokens]
  const int32_t* positions;  // [num_tokens]
} quire_scheduled_batch;
// The part of one request: tokens [first_position, first_position + num_tokens) of its sequence in
// the rows [first_row, first_row + num_tokens) of Q, K, V and the outputs.
typedef struct quire_scheduled_sequence {
  uint32_t struct_bytes;
  uint32_t struct_version;
  uint64_t request;
  uint64_t sequence;
  int64_t first_position;
  int64_t first_row;
  int64_t num_tokens;
  int64_t num_drafts;  // of num_tokens, the last ones: guesses that may be taken back
  int64_t num_cross_rows;
  int32_t is_last_chunk;  // 1: its rows decide tokens
  int32_t reserved;
} quire_scheduled_sequence;
// REQUIRES: the last batch has been committed or abandoned.
QUIRE_API quire_status quire_scheduler_schedule(quire_scheduler* scheduler,
                                                quire_scheduled_batch* batch);
QUIRE_API quire_status quire_scheduler_sequence(const quire_scheduler* scheduler, int64_t index,
                                                quire_scheduled_sequence* sequence);
// The batch as the layers of a group see it, for quire_prepare; valid until the next schedule.
QUIRE_API quire_status quire_scheduler_batch_view(const quire_scheduler* scheduler, int32_t group,
                                                  quire_batch* batch);
// To be run stage by stage before anything of the step is stored.
QUIRE_API quire_status quire_scheduler_copies(const quire_scheduler* scheduler, int64_t stage,
                                              int32_t group, quire_group_copies* copies);

typedef struct quire_step_result {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_tokens;     // computed
  int64_t num_sequences;  // in the batch
  int64_t num_ready;      // see quire_scheduler_ready
  int64_t num_finished;   // see quire_scheduler_finished
} quire_step_result;
// The batch has been computed (or is empty): its blocks can be shared from now on.
QUIRE_API quire_status quire_scheduler_commit(quire_scheduler* scheduler,
                                              quire_step_result* result);
// The copies of the first num_stages (-1: of all) stages have run, but nothing else: the step is to
// come again.
QUIRE_API quire_status quire_scheduler_abandon(quire_scheduler* scheduler, int64_t num_stages);

// All tokens of the request are computed: `row` of the outputs decides the next one, and row + i
// what comes after the i-th of its num_drafts drafts. Results are valid until the next commit.
typedef struct quire_ready_request {
  uint32_t struct_bytes;
  uint32_t struct_version;
  uint64_t request;
  int64_t row;
  int64_t num_drafts;
} quire_ready_request;
enum {
  QUIRE_FINISHED_LENGTH = 0,   // has all its tokens
  QUIRE_FINISHED_STOPPED = 1,  // the caller said so
  QUIRE_FINISHED_CANCELLED = 2,
  QUIRE_FINISHED_DEADLINE = 3,
  QUIRE_FINISHED_TOO_LARGE = 4  // prompt and new tokens do not fit, not even alone
};
typedef struct quire_finished_request {
  uint32_t struct_bytes;
  uint32_t struct_version;
  uint64_t request;
  int64_t num_new_tokens;
  const char* detail;  // too large: what it needs, and what there is; else ""
  int32_t reason;      // QUIRE_FINISHED_LENGTH, ...
  int32_t reserved;
} quire_finished_request;
QUIRE_API quire_status quire_scheduler_ready(const quire_scheduler* scheduler, int64_t index,
                                             quire_ready_request* ready);
QUIRE_API quire_status quire_scheduler_finished(const quire_scheduler* scheduler, int64_t index,
                                                quire_finished_request* finished);

// Between commit and the next schedule: adds tokens [num_tokens] to a request, and guesses of those
// that come next, drafts [num_drafts] (NULL: none). With the last of max_new_tokens it ends.
QUIRE_API quire_status quire_scheduler_extend(quire_scheduler* scheduler, uint64_t id,
                                              const int32_t* tokens, int64_t num_tokens,
                                              const int32_t* drafts, int64_t num_drafts);
// It has all its tokens.
QUIRE_API quire_status quire_scheduler_finish(quire_scheduler* scheduler, uint64_t id);
// A second request with the same tokens so far; blocks are shared.
QUIRE_API quire_status quire_scheduler_fork(quire_scheduler* scheduler, uint64_t id,
                                            uint64_t* forked);
// Added so far: tokens receives [num_tokens], valid until the request is extended or ends.
QUIRE_API quire_status quire_scheduler_new_tokens(const quire_scheduler* scheduler, uint64_t id,
                                                  const int32_t** tokens, int64_t* num_tokens);

typedef struct quire_scheduler_stats {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_steps;
  int64_t num_submitted;
  int64_t num_finished[5];  // by reason
  int64_t num_tokens;       // computed, those computed again included
  int64_t num_lost_tokens;  // given up by preemption
  int64_t num_recomputes;   // preemptions by kind
  int64_t num_partial_releases;
  int64_t num_swaps;
  int64_t num_drafts;
  int64_t num_accepted_drafts;
  int64_t num_waiting;  // now
  int64_t num_running;
  int64_t num_paused;
  int64_t num_swapped;
} quire_scheduler_stats;
// Named apart from the struct, whose name it would take in C.
QUIRE_API quire_status quire_scheduler_get_stats(const quire_scheduler* scheduler,
                                                 quire_scheduler_stats* stats);
// QUIRE_INTERNAL naming what is wrong.
QUIRE_API quire_status quire_scheduler_validate(const quire_scheduler* scheduler);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)
