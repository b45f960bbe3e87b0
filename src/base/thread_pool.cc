// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/check.h"

namespace quire {
namespace {

// How often threads look before they park: long enough to bridge the pause between two layers,
// short enough to give the core back when the step is over. 14 to 50 us, as a pause takes 40 to 140
// cycles.
constexpr int kSpins = 1000;

void require_cpus(std::span<const int> cpus) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;  // then pinning fails, or not
  for (const int cpu : cpus) {
    require(cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(static_cast<std::size_t>(cpu), &allowed),
            "cpus: this process may not run on CPU ", cpu);
  }
}

void pin(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  require(error == 0, "cpus: a thread could not be pinned to CPU ", cpu, " (error ", error, ")");
}

}  // namespace

Executor::~Executor() = default;

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus)
    : num_threads_(num_threads), places_(new Place[static_cast<std::size_t>(num_threads)]) {
  QUIRE_CHECK(num_threads >= 1);
  require_cpus(cpus);
  try {
    threads_.reserve(static_cast<std::size_t>(num_threads) - 1);
    for (int i = 1; i < num_threads; ++i) {
      threads_.emplace_back([this, i] { thread_main(i); });
      if (cpus.empty()) continue;
      pin(threads_.back(), cpus[static_cast<std::size_t>(i) % cpus.size()]);
    }
  } catch (const Error&) {
    stop();
    throw;
  } catch (const std::exception& error) {  // of the system: no memory, or no thread to be had
    const std::size_t started = threads_.size();
    stop();
    fail(ErrorCode::kOutOfMemory, "thread ", started + 1, " of ", num_threads,
         " could not be started: ", error.what());
  }
}

ThreadPool::ThreadPool(Executor& executor, int num_threads)
    : num_threads_(num_threads), executor_(&executor) {
  QUIRE_CHECK(num_threads >= 1);
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() noexcept {
  stopping_.store(true, std::memory_order_relaxed);
  wake_sleepers();
  for (std::thread& thread : threads_) thread.join();
}

// Whether the place was free in this run. Who comes with an old run finds that it is not.
bool ThreadPool::claim(Place& place, RunId run) noexcept {
  RunId last = place.claimed.load(std::memory_order_relaxed);
  return last < run && place.claimed.compare_exchange_strong(last, run, std::memory_order_acq_rel,
                                                             std::memory_order_relaxed);
}

// Of what was stored before, those who are about to sleep see all, or are seen to be asleep.
void ThreadPool::wake_sleepers() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (num_asleep_.load(std::memory_order_relaxed) == 0) return;
  wakes_.fetch_add(1, std::memory_order_seq_cst);  // before the look at who waits
  wakes_.notify_all();
}

void ThreadPool::run_erased(int num_shares, const Task& task) {
  if (num_shares <= 0) return;
  const std::lock_guard lock(run_mutex_);
  if (num_shares == 1) {
    task.call(task.context, 0);
    return;
  }
  if (executor_ != nullptr) {
    executor_->run(num_shares, task.call, task.context);
    return;
  }
  const RunId run = ++last_run_;
  const std::span others(places_.get() + 1, static_cast<std::size_t>(num_shares) - 1);
  for (Place& place : others) {
    place.task = task;
    place.posted.store(run, std::memory_order_release);
  }
  wake_sleepers();
  task.call(task.context, 0);
  for (int i = 1; i < num_shares; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    if (!claim(place, run)) continue;
    task.call(task.context, i);
    place.finished.store(run, std::memory_order_relaxed);
  }
  for (const Place& place : others) wait_for_share(place, run);
}

void ThreadPool::wait_for_share(const Place& place, RunId run) noexcept {
  const auto is_finished = [&] { return place.finished.load(std::memory_order_acquire) == run; };
  for (int i = 0; i < kSpins; ++i) {
    if (is_finished()) return;
    spin_pause();
  }
  caller_asleep_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (RunId last = place.finished.load(std::memory_order_acquire); last != run;
       last = place.finished.load(std::memory_order_acquire)) {
    place.finished.wait(last, std::memory_order_acquire);
  }
  caller_asleep_.store(false, std::memory_order_relaxed);
}

// Returns when there is another run than the one seen, or none will come.
ThreadPool::RunId ThreadPool::wait_for_run(const Place& place, RunId seen) noexcept {
  const auto is_over = [&] {
    return place.posted.load(std::memory_order_acquire) != seen ||
           stopping_.load(std::memory_order_relaxed);
  };
  for (;;) {
    for (int i = 0; i < kSpins; ++i) {
      if (is_over()) return place.posted.load(std::memory_order_acquire);
      spin_pause();
    }
    num_asleep_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t wakes = wakes_.load(std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!is_over()) wakes_.wait(wakes, std::memory_order_acquire);
    num_asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void ThreadPool::thread_main(int thread) noexcept {
  Place& place = places_[static_cast<std::size_t>(thread)];
  RunId run = 0;
  for (;;) {
    run = wait_for_run(place, run);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (!claim(place, run)) continue;
    place.task.call(place.task.context, thread);
    place.finished.store(run, std::memory_order_release);
    // The caller sees that, or is seen to be asleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (caller_asleep_.load(std::memory_order_relaxed)) place.finished.notify_one();
  }
}

}  // namespace quire
