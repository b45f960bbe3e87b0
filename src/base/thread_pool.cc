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
  QUIRE_CHECK(num_threads >= 1 && num_threads < 1 << kShareBits);
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
  open_run(0);
  for (std::thread& thread : threads_) thread.join();
}

// Whether the place was free in this run. Who comes with an old run finds that it is not.
bool ThreadPool::claim(Place& place, RunId run) noexcept {
  RunId last = place.claimed.load(std::memory_order_relaxed);
  return last < run && place.claimed.compare_exchange_strong(last, run, std::memory_order_acq_rel,
                                                             std::memory_order_relaxed);
}

void ThreadPool::open_run(int num_shares) noexcept {
  const RunId count = (run_.load(std::memory_order_relaxed) >> kShareBits) + 1;
  const RunId run = (count << kShareBits) | static_cast<RunId>(num_shares);
  run_.store(run, std::memory_order_release);
  count_.store(count_of(run), std::memory_order_release);
  count_.notify_all();
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
  task_ = task;
  open_run(num_shares);
  const RunId run = run_.load(std::memory_order_relaxed);
  task.call(task.context, 0);
  for (int i = 1; i < num_shares; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    if (!claim(place, run)) continue;
    task.call(task.context, i);
    place.finished.store(count_of(run), std::memory_order_relaxed);
  }
  for (int i = 1; i < num_shares; ++i) {
    const std::atomic<std::uint32_t>& finished = places_[static_cast<std::size_t>(i)].finished;
    std::uint32_t last = finished.load(std::memory_order_acquire);
    for (int spins = 0; last != count_of(run); ++spins) {
      if (spins < kSpins) {
        spin_pause();
      } else {
        finished.wait(last, std::memory_order_acquire);
      }
      last = finished.load(std::memory_order_acquire);
    }
  }
}

// Returns when there is another run than the one seen.
ThreadPool::RunId ThreadPool::wait_for_run(RunId seen) const noexcept {
  for (int i = 0;; ++i) {
    const RunId run = run_.load(std::memory_order_acquire);
    if (run != seen) return run;
    if (i < kSpins) {
      spin_pause();
    } else {
      count_.wait(count_of(seen), std::memory_order_acquire);
    }
  }
}

void ThreadPool::thread_main(int thread) noexcept {
  Place& place = places_[static_cast<std::size_t>(thread)];
  RunId run = 0;
  for (;;) {
    run = wait_for_run(run);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const auto num_shares = static_cast<int>(run & ((1U << kShareBits) - 1));
    if (thread >= num_shares || !claim(place, run)) continue;
    task_.call(task_.context, thread);
    place.finished.store(count_of(run), std::memory_order_release);
    place.finished.notify_one();
  }
}

}  // namespace quire
