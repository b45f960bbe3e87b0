// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that work through numbered items: own ones, or those of an executor that
// the caller of the library brings.
//
// The caller works too, so a pool of n has n - 1 threads of its own. Items are handed out in order
// by one counter: put the longest first. Idle threads spin shortly, since the next layer's call
// usually follows within microseconds, then park. A run waits for the threads that joined it and
// for no other: one that still sleeps when the items are gone is not missed. A run allocates
// nothing.
//
// Thread safety: run() may be called from several threads; calls take turns. It must not be called
// from inside an item.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

#include "quire/executor.h"

namespace quire {

// Tells the core that it spins.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class ThreadPool {
 public:
  // Thread i of the pool, from 1 on, is pinned to cpus[i % size] unless there are none; the
  // caller's own thread stays where it is. Throws Error(kOutOfMemory) if the system does not give
  // so many threads, Error(kInvalidArgument) if it does not give such a CPU.
  // REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads, std::span<const int> cpus = {});
  // The threads of `executor`, which must outlive the pool. REQUIRES: num_threads >= 1.
  ThreadPool(Executor& executor, int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return num_threads_; }

  // Calls f(item, thread) for every item of [0, num_items), thread of [0, num_threads()), and
  // returns when all have finished. Two calls with the same thread never overlap. f must not throw.
  template <class F>
  void run(std::int64_t num_items, F&& f) {
    static_assert(std::is_nothrow_invocable_v<F&, std::int64_t, int>);
    run_erased(num_items, {.call =
                               [](void* context, std::int64_t item, int thread) noexcept {
                                 (*static_cast<std::remove_reference_t<F>*>(context))(item, thread);
                               },
                           .context = const_cast<void*>(static_cast<const void*>(&f))});
  }

 private:
  struct Task {
    void (*call)(void* context, std::int64_t item, int thread) noexcept = nullptr;
    void* context = nullptr;
  };

  void stop() noexcept;
  void run_erased(std::int64_t num_items, const Task& task);
  void run_on_executor(int num_workers);
  void work(int thread) noexcept;
  void thread_main(int thread) noexcept;

  const int num_threads_;
  Executor* const executor_ = nullptr;
  std::mutex run_mutex_;  // one run at a time
  std::vector<std::thread> threads_;

  // Written by run_erased before it opens a run, read by the threads that joined it, and left alone
  // until all of those have finished.
  Task task_;
  std::int64_t num_items_ = 0;

  // Places for threads in the open run: one that takes a place while there are some has joined.
  alignas(64) std::atomic<int> num_places_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // of runs; what idle threads wait for
  alignas(64) std::atomic<std::int64_t> next_item_{0};
  alignas(64) std::atomic<int> num_finished_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace quire
