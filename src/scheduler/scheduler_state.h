// SPDX-License-Identifier: Apache-2.0
// What a Scheduler holds. The calls are in scheduler.cc, the making of a batch in schedule.cc, who
// starts in admission.cc, and who gives up blocks in preemption.cc.
//
// Invariants, checked by validate(): a request is in `running` or in `waiting`, as its status says,
// and in `paused` too if it is paused; num_computed is what the manager has; at most max_sequences
// run.
//
// Allocations: the lists have room for all records, and `finished` and `reported` for all requests
// to end. So a request moves between lists, ends and is committed without allocating; what may
// throw (records, prompts, calls of the manager that take blocks) comes before a change of state.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
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
  bool has_failed = false;              // the last schedule(): copies may wait in the manager
  std::int64_t num_kept_tokens = 0;     // of the budget, for decodes that come later in this step
  std::vector<Submission> submissions;  // taken from the inbox
  std::size_t num_accepted = 0;         // of submissions
  std::vector<RequestId> cancels;       // taken from the inbox, after submissions
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
  // Why it can never run; empty: it can.
  std::string why_too_large(const RequestRecord& request) const;
  std::int64_t max_tokens_alone(std::int64_t num_cross_tokens) const;
  void add_deadline(const RequestRecord& request);
  void end(RequestIndex index, FinishReason reason, std::string detail = {});
  void free_sequence(RequestRecord& request);
  void leave_lists(RequestIndex index);
  void enter_running(RequestIndex index);
  void enter_waiting(RequestIndex index, RequestRecord::Status status);
  bool has_room_to_run(const RequestRecord& request) const;
  // Commits the drafts that equal the tokens which were added, and drops the others.
  void settle_drafts(RequestRecord& request, std::span<const Token> tokens);
  void drop_drafts(RequestRecord& request);

  // A step.
  void begin_step();
  void accept_all();
  void expire();
  void continue_running();
  void continue_one(RequestIndex index);
  std::int64_t num_tokens_left() const { return builder.num_tokens_left() - num_kept_tokens; }
  std::int64_t num_drafts_for(const RequestRecord& request, std::int64_t num_tokens) const;
  bool append_or_preempt(const RequestRecord& request, std::int64_t num_tokens);
  void add_to_batch(RequestRecord& request, std::int64_t num_tokens, std::int64_t num_drafts);
  void undo_schedule();

  // Preemption.
  enum class Holders : std::uint8_t { kPaused, kRunning, kAll, kPausedAndLowerClass, kLowerClass };
  std::optional<RequestIndex> last_holder_below(const RequestRecord& request, Holders who) const;
  // Table entries that give so many blocks of every pool if nobody shares them; at least one.
  template <class F>
  std::int64_t num_entries_for(const F& num_missing_in) const {
    std::int64_t num_entries = 1;
    for (std::size_t p = 0; p < num_groups_of.size(); ++p) {
      if (num_groups_of[p] == 0) continue;
      const std::int64_t num_blocks = num_missing_in(static_cast<int>(p));
      num_entries = std::max(num_entries, (num_blocks + num_groups_of[p] - 1) / num_groups_of[p]);
    }
    return num_entries;
  }
  std::int64_t num_held(const RequestRecord& request, int pool) const;
  // Gives back the blocks of its last num_entries table entries, or all of them, and its place.
  void preempt(RequestIndex index, std::int64_t num_entries);

  // Admission.
  enum class Start : std::uint8_t {
    kDone,      // it runs, or has ended because it cannot
    kBlocked,   // blocks are missing
    kFull,      // no more may run
    kNextStep,  // no more rows of encoders fit in this one
  };
  // What a request that starts must leave free.
  enum class Turn : std::uint8_t {
    kLast,    // all that the running ones have still to compute
    kByRank,  // what those above it have; the others have not had their turn yet
  };
  void admit_waiting();
  bool start_before(const RequestRecord& next);
  Start start_by_force(RequestIndex index);
  Start start_over_lower_classes(RequestIndex index);
  void begin_anew(RequestIndex index);  // without a sequence
  bool is_enough(const RequestRecord& request) const;
  std::int64_t num_missing(const RequestRecord& request, Turn turn, int pool) const;
  struct Choice {
    RequestIndex first = 0;  // by rank
    RequestIndex best = 0;   // to be tried before it
  };
  std::optional<Choice> choose_waiting();
  bool waits_for_shared(const RequestRecord& request, std::int64_t num_cached) const;
  Start start(RequestIndex index, Turn turn);
  std::int64_t num_outstanding(const RequestRecord& request, Turn turn) const;
  bool start_new(RequestRecord& request, Turn turn);
  bool start_swapped(const RequestRecord& request, Turn turn);
  bool start_paused(const RequestRecord& request, Turn turn) const;
  // Tokens for which a request that is resident must find room to start.
  std::int64_t num_wanted(const RequestRecord& request, Turn turn) const;
  AdmitOptions admit_options(const RequestRecord& request, std::int64_t num_beside) const;
  void fold_tokens(RequestRecord& request);

  void commit(const ScheduledSequence& scheduled);
  void validate() const;
  void validate_request(RequestIndex index) const;
};

}  // namespace quire
