// SPDX-License-Identifier: Apache-2.0
// Who runs in the next step: continuous batching over a BlockManager.
//
//   const RequestId id = scheduler.submit({.prompt = prompt, .max_new_tokens = 100});
//   const ScheduledBatch& batch = scheduler.schedule(manager);
//   ... run batch.copies(), then compute ...
//   for (const ReadyRequest& ready : scheduler.commit(batch).ready)
//     scheduler.extend(ready.id, choose_token(ready.row));
//
// Rank. Requests stand in one strict order, which never changes: by priority * aging_steps + the
// step in which they came, then by submission. So a request rises by one class, compared with those
// that come later, every aging_steps steps; only what comes before it has risen above its class can
// pass it, and all that runs comes to an end: none starves.
//
// A step. Running requests first, by rank: each that decodes gets its token; prefill gets what the
// budget leaves, in chunks. Whoever lacks blocks takes them from the lowest in rank below it, and
// whoever has nobody below it waits: the first of those that run always goes on. Then the waiting
// ones by rank, as long as they fit above the watermark beside all that is still to be computed of
// the running ones; the first that does not fit stops the others. It takes blocks of preempted
// requests below it, and of running ones only if nothing else would run in this step. In a step
// with a preemption nobody is admitted, unless it would be empty. But a waiting request that stands
// above a running one of a lower class does not wait for it: it starts in its turn by rank, and
// takes the blocks and the places of such requests if that is enough.
//
// Preemption, by the cheapest way that gives the blocks (PreemptionOptions): the end of the
// sequence is cut off and computed again later (partial release), all of it moves to the host and
// back (swap), or all of it is given up (recompute; the prefix cache may still have it).
//
// Speculation. With the tokens that it adds to a request the caller may give drafts: guesses of
// those that follow. They are computed in the same step if budget and free blocks allow. The caller
// then adds what the model says, and the drafts that equal it are kept; the others are rolled back.
//
// Memory may run out (std::bad_alloc). schedule() has then scheduled nothing and can be called
// again: whom it has preempted stays so, and the copies it has decided on open the next batch.
// Every other call has changed nothing.
//
// The same calls give the same batches. submit, cancel and num_unfinished may be called from any
// thread; everything else belongs to one thread. Expected outcomes are values; misuse throws
// Error(kInvalidArgument) and changes nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "quire/block_manager.h"
#include "quire/export.h"
#include "quire/request.h"
#include "quire/scheduled_batch.h"

namespace quire {

// The cost of giving up tokens [a, b) of a sequence and computing them again is
//   token_seconds * (b - a) + key_seconds * (b^2 - a^2) / 2,
// that of moving all its n tokens out and in again 2 * byte_seconds * token_bytes * n. The defaults
// are an 8B model in bf16 (16 GFLOP and 128 KiB per token) at 400 TFLOP/s and 25 GB/s: arithmetic,
// not measurement. Equal costs: partial before swap before recompute.
struct PreemptionOptions {
  bool allow_partial = true;
  bool allow_swap = true;  // only if the manager has host blocks
  // Waiting requests take from running ones of a lower class. No: they wait for one to end.
  bool allow_for_waiting = true;
  double token_seconds = 40e-6;
  double key_seconds = 1.3e-9;  // per pair of a token and a key it sees
  double byte_seconds = 1 / 25e9;
  std::int64_t token_bytes = 131072;  // K and V of one token in all layers; Engine sets it
};

// How the prefix cache changes the order of the waiting requests.
struct PrefixOptions {
  // Among so many of the first, the one with most cached tokens goes first, if it is less than a
  // class behind. 1: by rank alone.
  int window = 1;
  // Those that need a block which a running request is about to compute wait for it.
  bool wait_for_shared = false;
};

struct SchedulerOptions {
  std::int64_t max_tokens = 2048;     // in a step; at least max_sequences
  std::int64_t max_sequences = 256;   // in a step, and running
  std::int64_t max_chunk = 0;         // tokens of one request in a step; 0: max_tokens
  std::int64_t max_cross_tokens = 0;  // rows of encoders in a step; 0: max_tokens
  std::int64_t max_length = 0;        // prompt and new tokens of one request; 0: no limit
  std::int64_t max_total_length = 0;  // of all that run; 0: no limit
  int aging_steps = 256;              // 0: priorities are absolute and may starve
  PrefixOptions prefix{};
  PreemptionOptions preemption{};
  std::function<std::chrono::nanoseconds()> clock{};  // of deadlines; none: the steady clock
};

// Counts since construction, and how many requests are in which state now.
struct SchedulerStats {
  std::int64_t num_steps = 0;
  std::int64_t num_submitted = 0;  // that a step has seen, forks included
  std::array<std::int64_t, kNumFinishReasons> num_finished{};  // by FinishReason
  std::int64_t num_tokens = 0;       // computed, those computed again included
  std::int64_t num_lost_tokens = 0;  // given up by preemption
  std::int64_t num_recomputes = 0;   // preemptions by kind
  std::int64_t num_partial_releases = 0;
  std::int64_t num_swaps = 0;
  std::int64_t num_drafts = 0;  // computed
  std::int64_t num_accepted_drafts = 0;

  std::int64_t num_waiting = 0;  // without blocks
  std::int64_t num_running = 0;
  std::int64_t num_paused = 0;  // preempted, with the beginning of their blocks
  std::int64_t num_swapped = 0;

  std::int64_t num_preemptions() const noexcept {
    return num_recomputes + num_partial_releases + num_swaps;
  }
};

class QUIRE_API Scheduler {
 public:
  // `blocks` describes the manager that every schedule() is given.
  Scheduler(const SchedulerOptions& options, const BlockManagerOptions& blocks);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // Any thread. The request takes part from the next schedule() on.
  RequestId submit(Request request);
  // Any thread. Honoured by the next schedule(); of no effect on a request that has ended.
  void cancel(RequestId id);
  // Any thread: submitted and not yet ended.
  std::int64_t num_unfinished() const;

  // The work of the next step, with slots in the manager for all its tokens. The manager must be
  // the same in all calls, outlive the scheduler, and serve nobody else. REQUIRES: the last batch
  // has been committed or abandoned.
  const ScheduledBatch& schedule(BlockManager& manager);
  // The batch has been computed (or is empty): its blocks can be shared from now on.
  StepResult commit(const ScheduledBatch& batch);
  // The copies of the batch have run but nothing else has: the step is to come again. The second
  // form: only those of the first num_stages have; the others open the next batch.
  void abandon(const ScheduledBatch& batch) { abandon(batch, batch.copies().size()); }
  void abandon(const ScheduledBatch& batch, std::size_t num_stages);
  // Scheduled, and neither committed nor abandoned.
  bool has_batch() const noexcept;

  // Between commit and the next schedule. Adds tokens to a request, and guesses of those that come
  // next; with the last of max_new_tokens it ends. Drafts that it could not use are ignored.
  // REQUIRES: at least one token, and no more than max_new_tokens in all.
  void extend(RequestId id, std::span<const Token> tokens, std::span<const Token> drafts = {});
  void extend(RequestId id, Token token) { extend(id, std::span<const Token>(&token, 1)); }
  // It has all its tokens.
  void finish(RequestId id);
  // A second request with the same tokens so far, right behind it in rank; blocks are shared.
  // Drafts that wait for the caller's word are given up first, and stay so should memory run out.
  RequestId fork(RequestId id);
  // Added so far. Valid until the request is extended or ends.
  std::span<const Token> new_tokens(RequestId id) const;

  const SchedulerOptions& options() const noexcept;
  SchedulerStats stats() const;
  // Throws Error(kInternal) naming the request that is in a wrong list or out of step with the
  // manager.
  void validate() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
