// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

cpu_set_t set_of(int cpu) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  return set;
}

// Where the calling thread may run, and so those that it starts; empty if the system does not say.
cpu_set_t allowed_cpus() noexcept {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

// How many CPUs of the same core come before this one; 0 where the system does not say. Its list is
// like "0,8" or "0-1".
int place_in_core(int cpu) {
  std::ifstream list("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  int place = 0;
  for (int first = 0; list >> first; list.ignore()) {
    int last = first;
    if (list.peek() == '-') list.ignore() >> last;
    for (int sibling = first; sibling <= last; ++sibling) place += sibling < cpu ? 1 : 0;
  }
  return place;
}

// How long threads look before they park: long enough to bridge the pause between two layers, short
// enough to give the core back when the step is over.
constexpr std::chrono::microseconds kSpinTime{50};
// Looks between two at the clock: 3 to 10 us, as a pause takes 40 to 140 cycles.
constexpr int kSpins = 200;
// Threads that share a CPU would only keep each other from working.
std::chrono::nanoseconds spin_time_of(int num_threads, std::span<const int> cpus) {
  const cpu_set_t allowed = allowed_cpus();
  int num_cpus = CPU_COUNT(&allowed);
  if (num_cpus == 0) return kSpinTime;
  if (!cpus.empty()) {
    cpu_set_t given;
    CPU_ZERO(&given);
    for (const int cpu : cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &given);
    }
    num_cpus = std::min(num_cpus, CPU_COUNT(&given));
  }
  return num_threads <= num_cpus ? kSpinTime : std::chrono::nanoseconds(0);
}

void require_cpus(std::span<const int> cpus) {
  const cpu_set_t allowed = allowed_cpus();
  if (CPU_COUNT(&allowed) == 0) return;  // then pinning fails, or not
  for (const int cpu : cpus) {
    require(cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(static_cast<std::size_t>(cpu), &allowed),
            "cpus: this process may not run on CPU ", cpu);
  }
}

int set_cpus(std::thread& thread, const cpu_set_t& cpus) noexcept {
  return pthread_setaffinity_np(thread.native_handle(), sizeof(cpus), &cpus);
}

void pin(std::thread& thread, int cpu) {
  const int error = set_cpus(thread, set_of(cpu));
  require(error == 0, "cpus: a thread could not be pinned to CPU ", cpu, " (error ", error, ")");
}

}  // namespace

Executor::~Executor() = default;

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus, bool apart)
    : num_threads_(num_threads), spin_time_(spin_time_of(num_threads, cpus)) {
  QUIRE_CHECK(num_threads >= 1);
  require_cpus(cpus);
  try {
    places_ = std::make_unique<Place[]>(static_cast<std::size_t>(num_threads));
    parking_ = std::make_unique<ParkingLine[]>(static_cast<std::size_t>(num_threads) / 16 + 1);
    threads_.reserve(static_cast<std::size_t>(num_threads) - 1);
    for (int i = 1; i < num_threads; ++i) {
      threads_.emplace_back([this, i] { thread_main(i); });
      if (cpus.empty()) continue;
      pin(threads_.back(), cpus[static_cast<std::size_t>(i) % cpus.size()]);
    }
    if (cpus.empty() && apart && num_threads > 1) keep_apart();
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
    : num_threads_(num_threads), spin_time_(0), executor_(&executor) {
  QUIRE_CHECK(num_threads >= 1);
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() noexcept {
  stopping_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int i = 1; i <= static_cast<int>(threads_.size()); ++i) wake(parking(i));
  for (std::thread& thread : threads_) thread.join();
}

// Only where there is a thread for every CPU. A system that refuses is left to itself.
void ThreadPool::keep_apart() {
  const cpu_set_t allowed = allowed_cpus();
  if (CPU_COUNT(&allowed) != num_threads_) return;
  // Runs of few shares take the first ones: a core for each.
  std::vector<std::pair<int, int>> places;  // in its core, CPU
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) continue;
    places.emplace_back(place_in_core(cpu), cpu);
  }
  std::sort(places.begin(), places.end());
  for (const auto& [place, cpu] : places) own_cpus_.push_back(cpu);
  owner_ = getpid();
  for (std::size_t i = 1; i < own_cpus_.size(); ++i) {
    if (set_cpus(threads_[i - 1], set_of(own_cpus_[i])) == 0) continue;
    for (std::size_t j = 1; j < i; ++j) (void)set_cpus(threads_[j - 1], allowed);
    own_cpus_.clear();
  }
}

// If the caller has come to the CPU of a thread with a share, that one takes the CPU which is left.
// Where somebody else has moved it, or it is gone (in a child of fork()), all stay where they are
// from then on.
void ThreadPool::make_room(int num_shares) noexcept {
  if (own_cpus_.empty()) return;
  const int here = sched_getcpu();
  if (here == own_cpus_[0]) return;
  const auto last = own_cpus_.begin() + num_shares;
  const auto taken = std::find(own_cpus_.begin() + 1, last, here);
  if (taken == last) return;
  const auto is_as_it_was = [&](std::thread& thread) {
    const cpu_set_t expected = set_of(here);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    return getpid() == owner_ &&
           pthread_getaffinity_np(thread.native_handle(), sizeof(cpus), &cpus) == 0 &&
           CPU_EQUAL(&cpus, &expected);
  };
  std::thread& thread = threads_[static_cast<std::size_t>(taken - own_cpus_.begin()) - 1];
  if (is_as_it_was(thread) && set_cpus(thread, set_of(own_cpus_[0])) == 0) {
    std::swap(*taken, own_cpus_[0]);
  } else {
    own_cpus_.clear();
  }
}

// Whether the place was free in this run. Who comes with an old run finds that it is not.
bool ThreadPool::claim(Place& place, RunId run) noexcept {
  RunId last = place.claimed.load(std::memory_order_relaxed);
  return last < run && place.claimed.compare_exchange_strong(last, run, std::memory_order_acq_rel,
                                                             std::memory_order_relaxed);
}

// Whether the condition was met before it was time to sleep. Often it soon is: the clock, which
// takes as long as some looks, comes late.
template <class Condition>
bool ThreadPool::spin_until(const Condition& is_met) const noexcept {
  if (spin_time_.count() == 0) return is_met();
  Clock::time_point begin;
  for (int rounds = 0;; ++rounds) {
    for (int i = 0; i < kSpins; ++i) {
      if (is_met()) return true;
      spin_pause();
    }
    const Clock::time_point now = Clock::now();
    if (rounds == 0) begin = now;
    if (now - begin >= spin_time_) return false;
  }
}

// If it sleeps and nobody else has woken it.
void ThreadPool::wake(Parking& sleeper) noexcept {
  if (sleeper.load(std::memory_order_relaxed) == kAwake) return;
  if (sleeper.exchange(kAwake, std::memory_order_acq_rel) == kParked) sleeper.notify_one();
}

// Up to the first that sleeps.
int ThreadPool::threads_awake(int most) const noexcept {
  if (executor_ != nullptr) return most;
  int count = 1;
  while (count < most && parking(count).load(std::memory_order_relaxed) == kAwake) ++count;
  return count;
}

int ThreadPool::threads_at_hand(int most) noexcept {
  const int num_awake = threads_awake(most);
  if (num_awake == most || spin_time_.count() == 0) return num_awake;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  const Clock::rep last = last_asked_.exchange(now, std::memory_order_relaxed);
  // A thread that had been awake then would be now: it pays to have it so for the next time.
  if (now - last < spin_time_.count()) wake_sleepers(most);
  return num_awake;
}

// Of the first num_threads.
void ThreadPool::wake_sleepers(int num_threads) noexcept {
  // Those who are about to sleep see what was stored before, or are seen to be asleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int i = 1; i < num_threads; ++i) wake(parking(i));
}

// To wake a thread takes microseconds, so whoever was woken for a share helps, from the other end,
// and wakes none but those with shares: threads that wake each other for nothing never rest.
void ThreadPool::help_to_wake(int thread) noexcept {
  const Place& own = places_[static_cast<std::size_t>(thread)];
  if (!own.has_unclaimed_share()) return;
  for (int i = own.num_shares.load(std::memory_order_relaxed) - 1; i >= 1; --i) {
    if (parking(i).load(std::memory_order_relaxed) == kAwake) continue;  // its place is not read
    if (places_[static_cast<std::size_t>(i)].has_unclaimed_share()) wake(parking(i));
  }
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
  make_room(num_shares);
  const RunId run = ++last_run_;
  for (int i = 1; i < num_shares; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    place.task = task;
    place.num_shares.store(num_shares, std::memory_order_relaxed);
    place.posted.store(run, std::memory_order_release);
  }
  wake_sleepers(num_shares);
  task.call(task.context, 0);
  for (int i = 1; i < num_shares; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    if (!claim(place, run)) continue;
    task.call(task.context, i);
    place.finished.store(run, std::memory_order_relaxed);
  }
  for (int i = 1; i < num_shares; ++i) wait_for_share(i, run);
}

void ThreadPool::wait_for_share(int thread, RunId run) noexcept {
  const Place& place = places_[static_cast<std::size_t>(thread)];
  const auto is_finished = [&] { return place.finished.load(std::memory_order_acquire) == run; };
  if (spin_until(is_finished)) return;
  const auto waits_for = static_cast<std::uint32_t>(thread);
  caller_waits_for_.store(waits_for, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  while (!is_finished()) caller_waits_for_.wait(waits_for, std::memory_order_acquire);
  caller_waits_for_.store(0, std::memory_order_relaxed);
}

// Returns when there is another run than the one seen, or none will come.
ThreadPool::RunId ThreadPool::wait_for_run(int thread, RunId seen) noexcept {
  const Place& place = places_[static_cast<std::size_t>(thread)];
  Parking& own = parking(thread);
  const auto is_over = [&] {
    return place.posted.load(std::memory_order_acquire) != seen ||
           stopping_.load(std::memory_order_relaxed);
  };
  while (!spin_until(is_over)) {
    own.store(kParked, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!is_over()) own.wait(kParked, std::memory_order_acquire);
    own.store(kAwake, std::memory_order_relaxed);
    help_to_wake(thread);
  }
  return place.posted.load(std::memory_order_acquire);
}

void ThreadPool::thread_main(int thread) noexcept {
  Place& place = places_[static_cast<std::size_t>(thread)];
  RunId run = 0;
  for (;;) {
    run = wait_for_run(thread, run);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (!claim(place, run)) continue;
    place.task.call(place.task.context, thread);
    place.finished.store(run, std::memory_order_release);
    // The caller sees that, or is seen to be asleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    auto waits_for = static_cast<std::uint32_t>(thread);
    if (caller_waits_for_.load(std::memory_order_relaxed) == waits_for &&
        caller_waits_for_.compare_exchange_strong(waits_for, 0, std::memory_order_acq_rel)) {
      caller_waits_for_.notify_one();
    }
  }
}

}  // namespace quire
