// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/check.h"

namespace quire {
namespace {

// Long enough to bridge the pause between two layers, short enough to give the core back when the
// step is over: 14 to 50 us, as a pause takes 40 to 140 cycles.
constexpr int kSpins = 1000;

// Returns when `value` differs from `old`.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    spin_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

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

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus) : num_threads_(num_threads) {
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
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_erased(std::int64_t num_items, const Task& task) {
  if (num_items <= 0) return;
  const std::lock_guard lock(run_mutex_);
  const auto num_workers = static_cast<int>(std::min<std::int64_t>(num_threads_, num_items));
  if (num_workers == 1) {
    for (std::int64_t i = 0; i < num_items; ++i) task.call(task.context, i, 0);
    return;
  }
  task_ = task;
  num_items_ = num_items;
  next_item_.store(0, std::memory_order_relaxed);
  if (executor_ != nullptr) {
    run_on_executor(num_workers);
    return;
  }
  num_finished_.store(0, std::memory_order_relaxed);
  const int places = num_workers - 1;
  num_places_.store(places, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  // Nobody joins from here on; those who did are waited for.
  const int places_left = num_places_.exchange(0, std::memory_order_acq_rel);
  const int num_joined = places - std::max(places_left, 0);
  for (int finished = num_finished_.load(std::memory_order_acquire); finished != num_joined;
       finished = num_finished_.load(std::memory_order_acquire)) {
    wait_for_change(num_finished_, finished);
  }
}

void ThreadPool::run_on_executor(int num_workers) {
  executor_->run(
      num_workers,
      [](void* pool, int index) noexcept { static_cast<ThreadPool*>(pool)->work(index); }, this);
}

void ThreadPool::work(int thread) noexcept {
  const std::int64_t num_items = num_items_;
  for (;;) {
    const std::int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items) return;
    task_.call(task_.context, item, thread);
  }
}

void ThreadPool::thread_main(int thread) noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // A look first, so that those who come too late do not fight for the line. The place taken may
    // be one of a later run than the one seen, which is as good.
    if (num_places_.load(std::memory_order_relaxed) <= 0) continue;
    if (num_places_.fetch_sub(1, std::memory_order_acq_rel) <= 0) continue;
    work(thread);
    num_finished_.fetch_add(1, std::memory_order_acq_rel);
    num_finished_.notify_one();
  }
}

}  // namespace quire
