// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that work through numbered items.
//
// The caller works too, so a pool of n has n - 1 threads of its own. Items are handed out in order
// by one counter: put the longest first. Idle threads spin shortly, since the next layer's call
// usually follows within microseconds, then park. A run allocates nothing.
//
// Thread safety: run() may be called from several threads; calls take turns. It must not be called
// from inside an item.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

class ThreadPool {
 public:
  // Throws Error(kOutOfMemory) if the system does not give so many. REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  // Calls f(item, thread) for every item of [0, num_items), thread of [0, num_threads()), and
  // returns when all have finished. f must not throw.
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
  void work(const Task& task, std::int64_t num_items, int thread) noexcept;
  void thread_main(int thread) noexcept;

  std::mutex run_mutex_;  // one run at a time
  std::vector<std::thread> threads_;

  // Written by run_erased before it announces a new generation, read by the threads after they saw
  // it, and left alone until every thread has reported back.
  Task task_;
  std::int64_t num_items_ = 0;

  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<std::int64_t> next_item_{0};
  alignas(64) std::atomic<int> num_busy_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace quire
