// SPDX-License-Identifier: Apache-2.0
// A launch while it runs: the threads of the current block, where each of them waits, and the parts
// that judge what they do. The calls of simt.h come here through Launch::running().
//
// Invariants:
// - Kernel code runs only on fibers, and only in calls of `entry`; it comes back to the emulator by
//   enter(), inside of which hooks and replaced library functions check nothing.
// - A thread that has a fault never leaves enter(): its stack is left as it is.
//
// Thread safety: a launch belongs to the host thread that made it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/emulator/fault.h"
#include "gpu/emulator/happens_before.h"
#include "gpu/emulator/memory_checker.h"
#include "gpu/emulator/scheduler.h"
#include "gpu/emulator/shared_memory.h"
#include "gpu/emulator/simt.h"

namespace quire::simt::internal {

// Hooks and the emulator's own functions see this launch; null on a host thread that runs none.
class Launch;
extern constinit thread_local Launch* running_launch __attribute__((tls_model("initial-exec")));

enum class ThreadState : std::uint8_t { kNotStarted, kRunnable, kAtBarrier, kInCollective, kDone };

struct AsyncCopy {
  void* destination;
  const void* source;
  int bytes;
  int source_bytes;
  const void* pc;
  Site site;
  std::uint64_t group = 0;
  std::array<std::byte, 16> seen = {};  // [source_bytes] what the source held at the issue
};

// A thread that repeats an atomic operation and always finds the same value.
struct Spin {
  std::uintptr_t address = 0;
  std::uint64_t value = 0;
  std::uint64_t count = 0;
};

struct ThreadRecord {
  ThreadState state = ThreadState::kNotStarted;
  Dim3 index;
  // Where it waits, in either of the two waiting states:
  Site site;
  const void* pc = nullptr;
  // In a collective:
  LaneMask mask = 0;
  CollectiveFunction run = nullptr;
  const char* collective = "";
  void* operands = nullptr;
  // Copies on their way, in order of their groups; the group that is open has this number.
  std::vector<AsyncCopy> copies;
  std::uint64_t open_group = 0;
  Spin spin;
};

struct CollectiveCall {
  CollectiveFunction run;
  const char* name;
  void* operands;
  LaneMask mask;
  Site site;
  const void* pc;
};

class Launch {
 public:
  Launch(const char* kernel, const LaunchShape& shape, const LaunchOptions& options,
         KernelEntry entry, const void* parameters, std::size_t parameter_bytes);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  LaunchStats run();

  // Calls f(launch), the emulator's work, for the thread that runs in this host thread.
  template <class F>
  static auto enter(F&& f) noexcept {
    Launch& launch = *running_launch;
    const Inside inside(launch);
    try {
      return f(launch);
    } catch (Fault& fault) {
      launch.fault_ = std::move(fault);
    }
    launch.scheduler_.abandon();
  }

  // --- inside enter(); each may throw a Fault
  void sync_threads(Site site, const void* pc);
  void collective(const CollectiveCall& call);
  void copy_async(AsyncCopy copy);
  void copy_async_commit();
  void copy_async_wait(int groups_left);
  std::uint64_t atomic(void* address, std::size_t bytes, const AtomicOperation& operation,
                       Site site, const void* pc);
  void* static_shared(const void* key, std::size_t bytes, std::size_t alignment, const char* name,
                      const void* pc);
  [[noreturn]] void raise(FaultKind kind, std::string text, Site site, const void* pc);

  int current() const { return scheduler_.current(); }
  // The lanes of a warp that have a thread.
  LaneMask lanes_of_warp(int warp) const;
  int warp_of(int thread) const { return thread / shape_.warp_width; }
  ThreadRecord& thread(int index) { return threads_[static_cast<std::size_t>(index)]; }
  // The linear index of a lane of the warp of the thread that runs.
  int thread_of_lane(int lane) const { return warp_of(current()) * shape_.warp_width + lane; }
  const LaunchShape& shape() const { return shape_; }
  Dim3 block() const { return block_; }
  SharedMemory& shared() { return shared_; }
  HappensBefore& order() { return order_; }
  MemoryChecker& checker() { return checker_; }
  const Scheduler& scheduler() const { return scheduler_; }

  // Whether the emulator runs rather than the kernel.
  bool inside() const { return inside_; }
  // A load or store that a hook saw.
  void hooked_access(std::uintptr_t address, std::size_t bytes, AccessKind kind, const void* pc) {
    if (inside_) return;
    ++num_accesses_;
    if (scheduler_.on_current_stack(address)) return;
    enter([&](Launch& launch) {
      launch.checker_.check(
          {.thread = current(), .address = address, .bytes = bytes, .kind = kind, .pc = pc});
    });
  }

  // What a fiber does for one thread of one block.
  void run_thread();

 private:
  // Marks that the emulator itself runs.
  class Inside {
   public:
    explicit Inside(Launch& launch) : launch_(launch), before_(launch.inside_) {
      launch_.inside_ = true;
    }
    ~Inside() { launch_.inside_ = before_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Launch& launch_;
    bool before_;
  };

  void run_block(Dim3 block);
  void reset_fibers();
  void leave_kernel();
  void finish(const AsyncCopy& copy);
  void complete_barrier();
  void complete_collective(int warp, LaneMask lanes);
  void check_same_collective(const ThreadRecord& self, LaneMask lanes);
  void count_spins(std::uintptr_t address, std::uint64_t value, bool unchanged, Site site,
                   const void* pc);
  Fault stuck() const;
  std::string describe_waiting() const;
  FaultReport report(const Fault& fault) const;
  std::string thread_name(int thread) const;

  const char* kernel_;
  LaunchShape shape_;
  LaunchOptions options_;
  KernelEntry entry_;
  std::vector<std::byte> parameter_memory_;
  void* parameters_;
  int num_threads_;
  std::vector<ThreadRecord> threads_;
  std::vector<Dim3> blocks_run_;  // [block number - 1]
  Dim3 block_;
  bool inside_ = true;
  std::uint64_t num_accesses_ = 0;

  Site barrier_site_;
  int num_at_barrier_ = 0;
  int num_done_ = 0;
  std::vector<LaneMask> in_collective_;  // [warp]
  std::vector<LaneMask> done_lanes_;     // [warp]
  std::vector<int> woken_;

  FiberSet& fibers_;
  Scheduler scheduler_;
  HappensBefore order_;
  SharedMemory shared_;
  MemoryChecker checker_;
  std::optional<Fault> fault_;
};

}  // namespace quire::simt::internal
