// SPDX-License-Identifier: Apache-2.0
// Which thread of the block runs. A thread runs until it waits; then the next of those that are
// ready does, without a detour over the host. Woken threads go to the front, so a warp runs on
// until it meets a barrier of the block; with a seed the order is drawn at random instead.
//
// Thread safety: none; one launch owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gpu/emulator/fiber.h"

namespace quire::simt::internal {

class Scheduler {
 public:
  Scheduler(FiberSet& fibers, int num_threads, std::uint64_t seed);

  // Runs threads [0, num_threads) until none is ready. Called by the host.
  void run_all();

  // Called by the thread that runs: waits until another one wakes it; lets the others run first;
  // ends and never comes back unless run_all starts it again; leaves without coming back.
  void wait();
  void yield();
  void finish() { wait(); }
  [[noreturn]] void abandon() { fibers_.leave_for_good(static_cast<std::size_t>(current_)); }

  // Makes waiting threads ready; reorders the list by the seed.
  void wake(std::vector<int>& threads);
  // Another order of [0, num) by the seed, or the order itself without one.
  void shuffle(std::vector<int>& order);

  int current() const { return current_; }
  bool others_ready() const { return num_ready_ != 0; }
  bool on_current_stack(std::uintptr_t address) const {
    return address - stack_low_ < FiberSet::kStackBytes;
  }
  std::uintptr_t stack_low() const { return stack_low_; }
  std::uint64_t num_switches() const { return num_switches_; }

 private:
  void push_front(int thread);
  void push_back(int thread);
  int pop_front();
  void make_current(int thread);

  FiberSet& fibers_;
  int num_threads_;
  bool shuffles_;
  std::mt19937_64 random_;
  std::vector<std::uint16_t> ready_;  // a ring; its size is a power of two
  std::size_t front_ = 0;
  std::size_t num_ready_ = 0;
  int current_ = -1;
  std::uintptr_t stack_low_ = 0;
  std::uint64_t num_switches_ = 0;
};

}  // namespace quire::simt::internal
