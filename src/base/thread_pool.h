// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that work through numbered items: own ones, or those of an executor that
// the caller of the library brings.
//
// The caller works too, as thread 0, so a pool of n has n - 1 threads of its own. Idle threads spin
// shortly, since the next layer's call usually follows within microseconds, then park.
//
// A run is one share for each thread that takes part. A thread claims its own; what nobody has
// claimed when the caller is done with its share, the caller does too. So a thread that still
// sleeps is not waited for, and no line is fought for: every thread has one of its own, in which
// the caller leaves the run and the thread says when it is done. A run allocates nothing.
//
// Only those wake that have a share. That takes time, so those who wake up help before they begin.
// For what is over before they come, ask who is awake (threads_at_hand).
//
// A pool with a thread for each CPU that the process may use keeps them apart: every one of its own
// has a CPU to itself, and the caller, who goes where the system puts it, the one that is left. The
// system would wake two on one CPU while threads of others still spin elsewhere, and leave it so
// for milliseconds: of 16 threads one to four came late or never (docs/benchmarks.md). Other pools
// are left to the system, and so is one whose threads somebody else has moved since. Two such pools
// that run at once share all CPUs, whatever else is idle: give one of them `apart` false.
//
// Thread safety: runs may be started from several threads; they take turns. None must be started
// from inside another.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
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
  // Thread i of the pool, from 1 on, is pinned to cpus[i % size]; the caller's own thread stays
  // where it is. Without `cpus` they are kept apart as said above, unless `apart` is false. Throws
  // Error(kOutOfMemory) if the system does not give so many threads, Error(kInvalidArgument) if it
  // does not give such a CPU. REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads, std::span<const int> cpus = {}, bool apart = true);
  // The threads of `executor`, which must outlive the pool. REQUIRES: num_threads >= 1.
  ThreadPool(Executor& executor, int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return num_threads_; }

  // Calls f(item, thread) for every item of [0, num_items), thread of [0, num_threads()), and
  // returns when all have finished. Two calls with the same thread never overlap. f must not throw.
  // No more items than threads: item i is thread i's, which may find its data in its caches. More:
  // they are handed out in order, so put the longest first.
  template <class F>
  void run(std::int64_t num_items, F&& f) {
    static_assert(std::is_nothrow_invocable_v<F&, std::int64_t, int>);
    if (num_items <= num_threads_) {
      run_shares(static_cast<int>(num_items), [&](int thread) noexcept { f(thread, thread); });
      return;
    }
    alignas(64) std::atomic<std::int64_t> next_item{0};
    run_shares(num_threads_, [&](int thread) noexcept {
      for (;;) {
        const std::int64_t item = next_item.fetch_add(1, std::memory_order_relaxed);
        if (item >= num_items) return;
        f(item, thread);
      }
    });
  }

  // Calls f(thread) for every thread of [0, num_shares). REQUIRES: num_shares <= num_threads().
  template <class F>
  void run_shares(int num_shares, F&& f) {
    static_assert(std::is_nothrow_invocable_v<F&, int>);
    run_erased(num_shares, {.call =
                                [](void* context, int thread) noexcept {
                                  (*static_cast<std::remove_reference_t<F>*>(context))(thread);
                                },
                            .context = const_cast<void*>(static_cast<const void*>(&f))});
  }

  // Of `most` shares, how many to make of a run that is over before a thread that sleeps has woken
  // up: one for each thread that is awake, from thread 0, the caller, on. Where such runs follow
  // each other closely, sleepers are woken for the next ones. REQUIRES: 1 <= most <= num_threads().
  int threads_at_hand(int most) noexcept;
  // The same for what belongs to the next such run: it is not counted as another, and wakes nobody.
  int threads_awake(int most) const noexcept;

 private:
  struct Task {
    void (*call)(void* context, int thread) noexcept = nullptr;
    void* context = nullptr;
  };
  using RunId = std::uint64_t;  // how many there were, this one included

  // The share of one thread. Who has claimed it may read the task, which is written before `posted`
  // and left alone until the share is finished. Two lines each: processors fetch them in pairs.
  struct alignas(128) Place {
    std::atomic<RunId> posted{0};    // the last run that has a share for the thread
    std::atomic<RunId> claimed{0};   // that somebody claimed it of
    std::atomic<RunId> finished{0};  // that it was done of
    std::atomic<int> num_shares{0};  // of the run posted
    Task task;

    bool has_unclaimed_share() const noexcept {
      return claimed.load(std::memory_order_relaxed) < posted.load(std::memory_order_relaxed);
    }
  };

  using Clock = std::chrono::steady_clock;
  // Whether somebody sleeps, or is about to. A word that the system can wait for as it is.
  using Parking = std::atomic<std::uint32_t>;
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kParked = 1;
  struct alignas(64) ParkingLine {
    Parking of_thread[16]{};
  };
  Parking& parking(int thread) const noexcept {
    return parking_[static_cast<std::size_t>(thread) / 16].of_thread[thread % 16];
  }

  static bool claim(Place& place, RunId run) noexcept;
  template <class Condition>
  bool spin_until(const Condition& is_met) const noexcept;
  static void wake(Parking& sleeper) noexcept;
  void wake_sleepers(int num_threads) noexcept;
  void help_to_wake(int thread) noexcept;
  RunId wait_for_run(int thread, RunId seen) noexcept;
  void wait_for_share(int thread, RunId run) noexcept;
  void stop() noexcept;
  void keep_apart();
  void make_room(int num_shares) noexcept;
  void run_erased(int num_shares, const Task& task);
  void thread_main(int thread) noexcept;

  // What all threads read, in lines that change only when somebody begins or ends to sleep.
  alignas(64) const int num_threads_;
  const Clock::duration spin_time_;
  Executor* const executor_ = nullptr;
  std::unique_ptr<Place[]> places_;                 // [num_threads]
  std::unique_ptr<ParkingLine[]> parking_;          // [num_threads], several in a line
  std::atomic<std::uint32_t> caller_waits_for_{0};  // a thread, 0: it is awake
  std::atomic<bool> stopping_{false};

  // What the caller writes in every run.
  alignas(64) std::mutex run_mutex_;  // one run at a time
  RunId last_run_ = 0;
  std::atomic<Clock::rep> last_asked_{0};  // threads_at_hand, when some slept
  int owner_ = 0;                          // the process that the threads belong to
  std::vector<int> own_cpus_;  // [num_threads] where threads are kept apart; 0: the caller's

  std::vector<std::thread> threads_;
};

}  // namespace quire
