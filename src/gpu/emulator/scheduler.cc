// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/scheduler.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace quire::simt::internal {

Scheduler::Scheduler(FiberSet& fibers, int num_threads, std::uint64_t seed)
    : fibers_(fibers),
      num_threads_(num_threads),
      shuffles_(seed != 0),
      random_(seed),
      ready_(std::bit_ceil(static_cast<std::size_t>(num_threads))) {}

void Scheduler::push_front(int thread) {
  front_ = (front_ - 1) & (ready_.size() - 1);
  ready_[front_] = static_cast<std::uint16_t>(thread);
  ++num_ready_;
}

void Scheduler::push_back(int thread) {
  ready_[(front_ + num_ready_) & (ready_.size() - 1)] = static_cast<std::uint16_t>(thread);
  ++num_ready_;
}

int Scheduler::pop_front() {
  const int thread = ready_[front_];
  front_ = (front_ + 1) & (ready_.size() - 1);
  --num_ready_;
  return thread;
}

void Scheduler::make_current(int thread) {
  current_ = thread;
  stack_low_ = fibers_.stack_low(static_cast<std::size_t>(thread));
  ++num_switches_;
}

void Scheduler::run_all() {
  std::vector<int> order(static_cast<std::size_t>(num_threads_));
  std::iota(order.begin(), order.end(), 0);
  front_ = num_ready_ = 0;
  wake(order);
  make_current(pop_front());
  fibers_.resume(static_cast<std::size_t>(current_));
}

void Scheduler::wait() {
  const int self = current_;
  if (num_ready_ == 0) {
    ++num_switches_;
    fibers_.return_to_host(static_cast<std::size_t>(self));
    return;
  }
  const int next = pop_front();
  if (next == self) return;
  make_current(next);
  fibers_.switch_fiber(static_cast<std::size_t>(self), static_cast<std::size_t>(next));
}

void Scheduler::yield() {
  push_back(current_);
  wait();
}

void Scheduler::wake(std::vector<int>& threads) {
  shuffle(threads);
  if (shuffles_ && (random_() & 1) != 0) {
    for (const int thread : threads) push_back(thread);
  } else {
    for (std::size_t i = threads.size(); i-- > 0;) push_front(threads[i]);
  }
}

void Scheduler::shuffle(std::vector<int>& order) {
  if (shuffles_) std::shuffle(order.begin(), order.end(), random_);
}

}  // namespace quire::simt::internal
