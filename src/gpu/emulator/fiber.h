// SPDX-License-Identifier: Apache-2.0
// Fibers: threads of execution on one host thread that switch by name. A set of them has one run of
// address space, a stack and a guard page each, so that one subtraction tells whose stack an
// address lies in. Stacks cost memory only where they are touched.
//
// Invariants:
// - A fiber runs the set's entry function, which must never return: between two pieces of work it
//   parks by switching away.
// - A fiber that was left in the middle of work can be reset; it then starts anew, and nothing on
//   its old stack is unwound.
//
// Thread safety: none. A set belongs to the host thread that made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace quire::simt::internal {

// Where a suspended fiber, or the host that resumed one, goes on.
struct FiberContext {
  void* stack_pointer = nullptr;
  // For AddressSanitizer: the stack that is switched to, and its stand-in for stack frames.
  const void* stack_low = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  std::shared_ptr<void> portable;  // a ucontext_t where there is no assembly
};

struct StackRange {
  std::uintptr_t low = 0;
  std::size_t bytes = 0;
};

class FiberSet {
 public:
  // Frames of unoptimised, sanitized kernels stay below a quarter of this.
  static constexpr std::size_t kStackBytes = 256 * 1024;
  static constexpr std::size_t kGuardBytes = 64 * 1024;
  using Entry = void (*)();

  // `entry` runs on every fiber that is resumed for the first time.
  FiberSet(std::size_t max_fibers, Entry entry);
  ~FiberSet();
  FiberSet(const FiberSet&) = delete;
  FiberSet& operator=(const FiberSet&) = delete;

  // Makes sure that fibers [0, count) can be resumed. REQUIRES: count <= max_fibers.
  void prepare(std::size_t count);
  // Lets a fiber start anew.
  void reset(std::size_t index);

  // From the host to a fiber, from a fiber to another, from a fiber to the host. Each returns when
  // somebody switches back; leave_for_good does not, its fiber must be reset.
  void resume(std::size_t index);
  void switch_fiber(std::size_t from, std::size_t to);
  void return_to_host(std::size_t from);
  [[noreturn]] void leave_for_good(std::size_t from);
  // What `entry` must call first.
  static void finish_first_switch();

  // The stack of the host thread that made the set.
  StackRange host_stack() const {
    return {reinterpret_cast<std::uintptr_t>(host_.stack_low), host_.stack_bytes};
  }
  std::uintptr_t stack_low(std::size_t index) const {
    return arena_ + index * kStride + kGuardBytes;
  }
  bool on_any_stack(std::uintptr_t address) const {
    return address - arena_ < arena_bytes_ && (address - arena_) % kStride >= kGuardBytes;
  }
  std::size_t fiber_at(std::uintptr_t address) const { return (address - arena_) / kStride; }

 private:
  static constexpr std::size_t kStride = kStackBytes + kGuardBytes;

  void start(FiberContext& context, std::size_t index);

  Entry entry_;
  std::uintptr_t arena_ = 0;
  std::size_t arena_bytes_ = 0;
  FiberContext host_;
  std::vector<FiberContext> fibers_;  // those that can be resumed
};

}  // namespace quire::simt::internal
