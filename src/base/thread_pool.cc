// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <exception>

#include "base/check.h"

namespace quire {
namespace {

// Long enough to bridge the pause between two layers, short enough to give the core back when the
// step is over: 14 to 50 us, as a pause takes 40 to 140 cycles.
constexpr int kSpins = 1000;

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` differs from `old`.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  QUIRE_CHECK(num_threads >= 1);
  try {
    threads_.reserve(static_cast<std::size_t>(num_threads) - 1);
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { thread_main(i); });
  } catch (const std::exception& error) {  // of the system: no memory, or no thread to be had
    const std::size_t started = threads_.size();
    stop();
    fail(ErrorCode::kOutOfMemory, "thread ", started + 1, " of ", num_threads,
         " could not be started: ", error.what());
  }
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
  if (threads_.empty() || num_items == 1) {
    for (std::int64_t i = 0; i < num_items; ++i) task.call(task.context, i, 0);
    return;
  }
  task_ = task;
  num_items_ = num_items;
  next_item_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(task, num_items, 0);
  for (int busy = num_busy_.load(std::memory_order_acquire); busy != 0;
       busy = num_busy_.load(std::memory_order_acquire)) {
    wait_for_change(num_busy_, busy);
  }
}

void ThreadPool::work(const Task& task, std::int64_t num_items, int thread) noexcept {
  for (;;) {
    const std::int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items) return;
    task.call(task.context, item, thread);
  }
}

void ThreadPool::thread_main(int thread) noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    work(task_, num_items_, thread);
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
  }
}

}  // namespace quire
