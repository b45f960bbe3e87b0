// SPDX-License-Identifier: Apache-2.0
// What other threads ask of a scheduler, kept until the next step takes it. All calls may be made
// from any thread; ids are given out in the order in which requests are taken.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "quire/request.h"

namespace quire {

struct Submission {
  RequestId id;
  Request request;
};

class Inbox {
 public:
  RequestId submit(Request&& request) {
    const std::lock_guard lock(mutex_);
    submissions_.push_back({.id = {last_id_ + 1}, .request = std::move(request)});
    ++num_unfinished_;
    return {++last_id_};
  }

  // For a request that is made inside the scheduler. Does not allocate, as drain.
  RequestId take_id() {
    const std::lock_guard lock(mutex_);
    ++num_unfinished_;
    return {++last_id_};
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    require(id.value >= 1 && id.value <= last_id_, "request ", id.value,
            " was never submitted, the last one is ", last_id_);
    cancels_.push_back(id);
  }

  void note_end() {
    const std::lock_guard lock(mutex_);
    --num_unfinished_;
  }

  std::int64_t num_unfinished() const {
    const std::lock_guard lock(mutex_);
    return num_unfinished_;
  }

  // Everything since the last call, in order. The vectors given become the next buffers.
  // REQUIRES: they are empty.
  void drain(std::vector<Submission>& submissions, std::vector<RequestId>& cancels) {
    const std::lock_guard lock(mutex_);
    submissions.swap(submissions_);
    cancels.swap(cancels_);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Submission> submissions_;
  std::vector<RequestId> cancels_;
  std::uint64_t last_id_ = 0;
  std::int64_t num_unfinished_ = 0;
};

}  // namespace quire
