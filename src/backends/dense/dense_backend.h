// SPDX-License-Identifier: Apache-2.0
// What backends over dense libraries share: the threads that quire starts or the caller brings,
// append and merge, and a clock of what they gather. They read every layout that quire knows and
// prefer the plain one, whose blocks they can copy whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/host_backend.h"
#include "base/thread_pool.h"
#include "quire/registry.h"
#include "registry/dense_stages.h"

namespace quire::dense {

// What the first of several threads to fail threw.
class FirstError {
 public:
  // REQUIRES: called while something is being handled.
  void keep_current() noexcept {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
  }
  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
  // If there was one, throws an Error that names the library and the configuration: with the code
  // of an Error, kOutOfMemory for memory, else kDevice. REQUIRES: no thread is left that may fail.
  void rethrow(const BackendInfo& info, const AttentionSpec& spec) const;

 private:
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::exception_ptr thrown_;
};

class DenseBackend : public HostBackend, public GatherClock {
 public:
  void time_gather(bool on) override;
  double gather_seconds() const override;

 protected:
  // Throws as make_backend does for options that contradict each other.
  explicit DenseBackend(const BackendOptions& options);

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override;
  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override;

  // Calls f(item, thread) for every item of [0, num_items) on the threads of the backend. What f
  // throws ends the call, as FirstError says.
  template <class F>
  void run_items(const AttentionSpec& spec, std::int64_t num_items, F&& f) {
    FirstError error;
    pool_->run(num_items, [&](std::int64_t item, int thread) noexcept {
      if (error.failed()) return;
      try {
        f(item, thread);
      } catch (...) {
        error.keep_current();
      }
    });
    error.rethrow(info(), spec);
  }
  int num_threads() const noexcept { return pool_->num_threads(); }
  // Where a thread adds what it gathers (GatherTimer); null: nobody asks.
  double* gather_seconds_of(int thread) noexcept {
    return times_gather_ ? &gather_times_[static_cast<std::size_t>(thread)].seconds : nullptr;
  }

 private:
  struct alignas(64) ThreadTime {  // no two threads write to one line
    double seconds = 0;
  };

  std::unique_ptr<ThreadPool> pool_;
  bool times_gather_ = false;
  std::vector<ThreadTime> gather_times_;  // [num_threads]
};

}  // namespace quire::dense
