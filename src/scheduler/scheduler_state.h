// SPDX-License-Identifier: Apache-2.0
// What a Scheduler holds. The calls are in scheduler.cc, the making of a batch in schedule.cc.
//
// Invariants, checked by validate(): a request is in `running` or in `waiting`, as its status says,
// and in `paused` too if it is paused; num_computed is what the manager has; at most max_sequences
// run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "quire/scheduler.h"
#include "scheduler/batch_builder.h"
#include "scheduler/inbox.h"
#include "scheduler/preemption.h"
#include "scheduler/request_record.h"

namespace quire {

struct Scheduler::State {
  State(const SchedulerOptions& options_, const BlockManagerOptions& blocks);

  SchedulerOptions options;  // with no zero that stands for another value
  std::int64_t block_size;
  bool has_cross_group = false;
  std::vector<std::int64_t> num_groups_of;  // [num_pools] that grow with the tokens
  std::int64_t watermark_tokens = 0;        // the largest watermark of all pools
  BlockManager* manager = nullptr;          // of the first schedule()
  Inbox inbox;

  std::deque<RequestRecord> records;
  std::vector<RequestIndex> free_records;
  std::unordered_map<std::uint64_t, RequestIndex> by_id;  // not ended
  RankedList running;
  RankedList waiting;
  RankedList paused;                // of waiting
  std::int64_t running_length = 0;  // sum of final_length() of running

  struct Deadline {
    std::chrono::nanoseconds time{};
    RequestId id{};
    // NOLINTNEXTLINE(modernize-use-nullptr): the 0 is the compiler's
    friend auto operator<=>(const Deadline&, const Deadline&) = default;
  };
  std::vector<Deadline> deadlines;  // heap, earliest first; may name requests that have ended

  BatchBuilder builder;
  bool is_in_flight = false;
  bool has_preempted = false;           // in this step
  std::vector<Submission> submissions;  // scratch
  std::vector<RequestId> cancels;       // scratch
  std::vector<ReadyRequest> ready;
  std::vector<FinishedRequest> finished;  // since the last commit
  std::vector<FinishedRequest> reported;  // by the last commit
  SchedulerStats counters;

  // Requests.
  RequestRecord& record(RequestIndex index) { return records[index]; }
  RequestIndex index_of(RequestId id) const;  // throws naming it
  RequestIndex make_record();
  void require_between_steps(const char* call) const;
  void accept(Submission& submission);
  bool is_too_large(const RequestRecord& request) const;
  void add_deadline(const RequestRecord& request);
  void end(RequestIndex index, FinishReason reason);
  void free_sequence(RequestRecord& request);
  void leave_lists(RequestIndex index);
  void enter_running(RequestIndex index);
  void enter_waiting(RequestIndex index, RequestRecord::Status status);
  bool has_room_to_run(const RequestRecord& request) const;

  // A step.
  void begin_step();
  void expire();
  void continue_running();
  bool append_or_preempt(const RequestRecord& request, std::int64_t num_tokens);
  void add_to_batch(RequestRecord& request, std::int64_t num_tokens);

  // Preemption.
  enum class Holders : std::uint8_t { kPaused, kRunning, kAll };
  std::optional<RequestIndex> last_holder_below(const RequestRecord& request, Holders who) const;
  std::int64_t num_entries_missing(const RequestRecord& request, std::int64_t num_tokens) const;
  // Gives back the blocks of its last num_entries table entries, or all of them, and its place.
  void preempt(RequestIndex index, std::int64_t num_entries);

  // Admission.
  enum class Start : std::uint8_t {
    kDone,     // it runs, or has ended because it cannot
    kBlocked,  // blocks are missing
    kFull,     // no more may run
  };
  void admit_waiting();
  Start start_by_force(RequestIndex index);
  struct Choice {
    RequestIndex first = 0;  // by rank
    RequestIndex best = 0;   // to be tried before it
  };
  std::optional<Choice> choose_waiting();
  bool waits_for_shared(const RequestRecord& request, std::int64_t num_cached) const;
  Start start(RequestIndex index);
  std::int64_t num_outstanding() const;
  bool start_new(RequestRecord& request);
  bool start_paused(const RequestRecord& request) const;
  AdmitOptions admit_options(const RequestRecord& request, std::int64_t num_beside) const;
  void fold_tokens(RequestRecord& request);

  void commit(const ScheduledSequence& scheduled);
  void validate() const;
  void validate_request(RequestIndex index) const;
};

}  // namespace quire
