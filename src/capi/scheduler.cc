// SPDX-License-Identifier: Apache-2.0
// The scheduler of the C interface: requests, steps and what they came to.
#include <algorithm>
#include <chrono>
#include <memory>
#include <span>

#include "capi/convert.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

static_assert(QUIRE_FINISHED_LENGTH == static_cast<int>(FinishReason::kLength) &&
              QUIRE_FINISHED_STOPPED == static_cast<int>(FinishReason::kStopped) &&
              QUIRE_FINISHED_CANCELLED == static_cast<int>(FinishReason::kCancelled) &&
              QUIRE_FINISHED_DEADLINE == static_cast<int>(FinishReason::kDeadline) &&
              QUIRE_FINISHED_TOO_LARGE == static_cast<int>(FinishReason::kTooLarge) &&
              QUIRE_FINISHED_TOO_LARGE + 1 == kNumFinishReasons);

template <class T>
void set_unless_zero(T& value, T given) {
  if (given != T{}) value = given;
}

SchedulerOptions to_scheduler_options(const quire_scheduler_options* pointer) {
  const quire_scheduler_options given = read_optional_struct(pointer, "options");
  SchedulerOptions options;
  set_unless_zero(options.max_tokens, given.max_tokens);
  set_unless_zero(options.max_sequences, given.max_sequences);
  options.max_chunk = given.max_chunk;
  options.max_cross_tokens = given.max_cross_tokens;
  options.max_length = given.max_length;
  options.max_total_length = given.max_total_length;
  require(given.aging_steps >= -1, "aging_steps: cannot be ", given.aging_steps);
  set_unless_zero(options.aging_steps, given.aging_steps);
  options.aging_steps = std::max(options.aging_steps, 0);  // -1: absolute
  set_unless_zero(options.prefix.window, given.prefix_window);
  options.prefix.wait_for_shared = to_bool(given.wait_for_shared, "wait_for_shared");
  options.preemption.allow_partial = !to_bool(given.no_partial, "no_partial");
  options.preemption.allow_swap = !to_bool(given.no_swap, "no_swap");
  options.preemption.allow_for_waiting =
      !to_bool(given.no_preemption_for_waiting, "no_preemption_for_waiting");
  set_unless_zero(options.preemption.token_seconds, given.token_seconds);
  set_unless_zero(options.preemption.key_seconds, given.key_seconds);
  set_unless_zero(options.preemption.byte_seconds, given.byte_seconds);
  set_unless_zero(options.preemption.token_bytes, given.token_bytes);
  if (given.clock != nullptr) {
    options.clock = [clock = given.clock, context = given.clock_context] {
      return std::chrono::nanoseconds(clock(context));
    };
  }
  return options;
}

Request to_request(const quire_request* pointer) {
  const quire_request given = read_struct(pointer, "request");
  Request request{.prompt = open(given.prompt, "prompt").prompt,
                  .max_new_tokens = given.max_new_tokens,
                  .priority = given.priority,
                  .num_cross_tokens = given.num_cross_tokens};
  if (to_bool(given.has_deadline, "has_deadline")) {
    request.deadline = std::chrono::nanoseconds(given.deadline_ns);
  } else {
    require(given.deadline_ns == 0, "has_deadline: is 0, but deadline_ns is ", given.deadline_ns);
  }
  return request;
}

const ScheduledBatch& batch_of(const quire_scheduler* scheduler) {
  const ScheduledBatch* batch = open(scheduler, "scheduler").batch;
  require(batch != nullptr, "scheduler: nothing has been scheduled yet");
  return *batch;
}

std::span<const Token> to_new_tokens(const std::int32_t* tokens, std::int64_t size,
                                     const char* what) {
  require_array(tokens, size, what);
  return {tokens, static_cast<std::size_t>(size)};
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_scheduler_create(const quire_scheduler_options* options,
                                    quire_block_manager* manager, quire_scheduler** scheduler) {
  return guarded([&] {
    quire_scheduler*& out = require_out(scheduler, "scheduler");
    const std::shared_ptr<ManagedBlocks> blocks = open(manager, "manager").blocks;
    quire::require(!blocks->is_driven, "manager: another scheduler drives it");
    quire::require(blocks->manager.stats().num_sequences == 0,
                   "manager: has sequences that no scheduler knows");
    quire::Scheduler made(to_scheduler_options(options), blocks->manager.options());
    out = new quire_scheduler{.blocks = blocks, .scheduler = std::move(made), .result = {}};
    blocks->is_driven = true;
  });
}

quire_status quire_scheduler_destroy(quire_scheduler* scheduler) {
  return destroy(scheduler, "scheduler");
}

quire_status quire_scheduler_submit(quire_scheduler* scheduler, const quire_request* request,
                                    uint64_t* id) {
  return guarded([&] {
    uint64_t& out = require_out(id, "id");
    out = open(scheduler, "scheduler").scheduler.submit(to_request(request)).value;
  });
}

quire_status quire_scheduler_cancel(quire_scheduler* scheduler, uint64_t id) {
  return guarded([&] { open(scheduler, "scheduler").scheduler.cancel({id}); });
}

quire_status quire_scheduler_num_unfinished(const quire_scheduler* scheduler,
                                            int64_t* num_requests) {
  return guarded([&] {
    int64_t& out = require_out(num_requests, "num_requests");
    out = open(scheduler, "scheduler").scheduler.num_unfinished();
  });
}

quire_status quire_scheduler_schedule(quire_scheduler* scheduler, quire_scheduled_batch* batch) {
  return guarded([&] {
    OutStruct<quire_scheduled_batch> out(batch, "batch");
    quire_scheduler& opened = open(scheduler, "scheduler");
    const quire::ScheduledBatch& made = opened.scheduler.schedule(opened.blocks->manager);
    opened.batch = &made;
    auto value = make_struct<quire_scheduled_batch>();
    value.num_sequences = static_cast<int64_t>(made.sequences().size());
    value.num_tokens = made.num_tokens();
    value.num_cross_rows = made.num_cross_rows();
    value.num_copy_stages = static_cast<int64_t>(made.copies().size());
    value.tokens = made.tokens().data();
    value.positions = made.positions().data();
    out.set(value);
  });
}

quire_status quire_scheduler_sequence(const quire_scheduler* scheduler, int64_t index,
                                      quire_scheduled_sequence* sequence) {
  return guarded([&] {
    OutStruct<quire_scheduled_sequence> out(sequence, "sequence");
    const auto sequences = batch_of(scheduler).sequences();
    const quire::ScheduledSequence& found =
        sequences[to_index(index, sequences.size(), "sequence of the batch")];
    auto value = make_struct<quire_scheduled_sequence>();
    value.request = found.request.value;
    value.sequence = found.sequence.value;
    value.first_position = found.first_position;
    value.first_row = found.first_row;
    value.num_tokens = found.num_tokens;
    value.num_drafts = found.num_drafts;
    value.num_cross_rows = found.num_cross_rows;
    value.is_last_chunk = found.is_last_chunk ? 1 : 0;
    out.set(value);
  });
}

quire_status quire_scheduler_batch_view(const quire_scheduler* scheduler, int32_t group,
                                        quire_batch* batch) {
  return guarded([&] {
    OutStruct<quire_batch> out(batch, "batch");
    out.set(from_batch(batch_of(scheduler).view(group)));
  });
}

quire_status quire_scheduler_copies(const quire_scheduler* scheduler, int64_t stage, int32_t group,
                                    quire_group_copies* copies) {
  return guarded([&] {
    OutStruct<quire_group_copies> out(copies, "copies");
    const auto stages = batch_of(scheduler).copies();
    const auto groups = stages[to_index(stage, stages.size(), "stage")].groups;
    out.set(from_copies(groups[to_index(group, groups.size(), "group")]));
  });
}

quire_status quire_scheduler_commit(quire_scheduler* scheduler, quire_step_result* result) {
  return guarded([&] {
    OutStruct<quire_step_result> out(result, "result");
    const quire::ScheduledBatch& batch = batch_of(scheduler);
    scheduler->result = scheduler->scheduler.commit(batch);
    const quire::StepResult& step = scheduler->result;
    auto value = make_struct<quire_step_result>();
    value.num_tokens = step.num_tokens;
    value.num_sequences = step.num_sequences;
    value.num_ready = static_cast<int64_t>(step.ready.size());
    value.num_finished = static_cast<int64_t>(step.finished.size());
    out.set(value);
  });
}

quire_status quire_scheduler_abandon(quire_scheduler* scheduler, int64_t num_stages) {
  return guarded([&] {
    const quire::ScheduledBatch& batch = batch_of(scheduler);
    quire::require(num_stages >= -1, "num_stages: cannot be ", num_stages);
    scheduler->scheduler.abandon(
        batch, num_stages == -1 ? batch.copies().size() : static_cast<std::size_t>(num_stages));
  });
}

quire_status quire_scheduler_ready(const quire_scheduler* scheduler, int64_t index,
                                   quire_ready_request* ready) {
  return guarded([&] {
    OutStruct<quire_ready_request> out(ready, "ready");
    const auto all = open(scheduler, "scheduler").result.ready;
    const quire::ReadyRequest& found = all[to_index(index, all.size(), "ready request")];
    auto value = make_struct<quire_ready_request>();
    value.request = found.id.value;
    value.row = found.row;
    value.num_drafts = found.num_drafts;
    out.set(value);
  });
}

quire_status quire_scheduler_finished(const quire_scheduler* scheduler, int64_t index,
                                      quire_finished_request* finished) {
  return guarded([&] {
    OutStruct<quire_finished_request> out(finished, "finished");
    const auto all = open(scheduler, "scheduler").result.finished;
    const quire::FinishedRequest& found = all[to_index(index, all.size(), "finished request")];
    auto value = make_struct<quire_finished_request>();
    value.request = found.id.value;
    value.num_new_tokens = found.num_new_tokens;
    value.detail = found.detail.c_str();
    value.reason = static_cast<int32_t>(found.reason);
    out.set(value);
  });
}

quire_status quire_scheduler_extend(quire_scheduler* scheduler, uint64_t id, const int32_t* tokens,
                                    int64_t num_tokens, const int32_t* drafts, int64_t num_drafts) {
  return guarded([&] {
    quire::Scheduler& opened = open(scheduler, "scheduler").scheduler;
    opened.extend({id}, to_new_tokens(tokens, num_tokens, "tokens"),
                  to_new_tokens(drafts, num_drafts, "drafts"));
  });
}

quire_status quire_scheduler_finish(quire_scheduler* scheduler, uint64_t id) {
  return guarded([&] { open(scheduler, "scheduler").scheduler.finish({id}); });
}

quire_status quire_scheduler_fork(quire_scheduler* scheduler, uint64_t id, uint64_t* forked) {
  return guarded([&] {
    uint64_t& out = require_out(forked, "forked");
    out = open(scheduler, "scheduler").scheduler.fork({id}).value;
  });
}

quire_status quire_scheduler_new_tokens(const quire_scheduler* scheduler, uint64_t id,
                                        const int32_t** tokens, int64_t* num_tokens) {
  return guarded([&] {
    const int32_t*& out = require_out(tokens, "tokens");
    int64_t& size = require_out(num_tokens, "num_tokens");
    const auto added = open(scheduler, "scheduler").scheduler.new_tokens({id});
    out = added.data();
    size = static_cast<int64_t>(added.size());
  });
}

quire_status quire_scheduler_get_stats(const quire_scheduler* scheduler,
                                       quire_scheduler_stats* stats) {
  return guarded([&] {
    OutStruct<quire_scheduler_stats> out(stats, "stats");
    const quire::SchedulerStats found = open(scheduler, "scheduler").scheduler.stats();
    auto value = make_struct<quire_scheduler_stats>();
    value.num_steps = found.num_steps;
    value.num_submitted = found.num_submitted;
    std::copy(found.num_finished.begin(), found.num_finished.end(), value.num_finished);
    value.num_tokens = found.num_tokens;
    value.num_lost_tokens = found.num_lost_tokens;
    value.num_recomputes = found.num_recomputes;
    value.num_partial_releases = found.num_partial_releases;
    value.num_swaps = found.num_swaps;
    value.num_drafts = found.num_drafts;
    value.num_accepted_drafts = found.num_accepted_drafts;
    value.num_waiting = found.num_waiting;
    value.num_running = found.num_running;
    value.num_paused = found.num_paused;
    value.num_swapped = found.num_swapped;
    out.set(value);
  });
}

quire_status quire_scheduler_validate(const quire_scheduler* scheduler) {
  return guarded([&] { open(scheduler, "scheduler").scheduler.validate(); });
}
