// SPDX-License-Identifier: Apache-2.0
// Runs a GPU kernel on the host, one fiber per thread, and checks what it does to memory: the host
// side of the emulator (docs/gpu_emulator.md). Kernels themselves include simt.h.
//
//   simt::GlobalBuffer out(data, bytes, "out", simt::Access::kReadWrite);
//   simt::launch("scale", {.grid = {4}, .block = {128}, .shared_bytes = 1024},
//                [p] { scale_kernel(p); });
//
// Invariants:
// - Blocks run one after another and every thread of a block until it waits, in an order that
//   depends on the shape and `seed` alone. So a kernel may wait for threads of its own block, never
//   for another block.
// - A launch ends all its threads before it returns. The first fault ends it: the threads are left
//   where they stand, without unwinding, and KernelFault is thrown on the caller's stack.
// - What a kernel may touch: its own stack, the shared memory of its block, registered buffers, its
//   captured parameters and constants of the program. Everything else is a fault.
//
// Thread safety: launches may run on several host threads at once. They do not see one another: a
// buffer that two of them write is not checked for races between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "quire/error.h"

namespace quire::simt {
namespace internal {
struct RegisteredBuffer;
}

struct Dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
  bool operator==(const Dim3&) const = default;
};

// REQUIRES: every dimension > 0, at most 1024 threads in a block, warp_width 32 or 64.
struct LaunchShape {
  Dim3 grid = {};
  Dim3 block = {};
  std::size_t shared_bytes =
      0;  // dynamic shared memory of a block; static shared memory adds to it
  int warp_width = 32;
};

struct LaunchOptions {
  // 0: blocks and threads run in order of their index. Else their order is shuffled by this seed,
  // also after every barrier. A right kernel gives the same bits for every seed.
  std::uint64_t seed = 0;
  // Dynamic and static shared memory of a block together; 227 KiB is what sm_90 gives.
  std::size_t shared_limit_bytes = 227 * 1024;
  // Off: reading shared memory that nobody wrote is allowed. It holds 0xff bytes (NaN).
  bool check_uninitialised_shared = true;
  // A thread whose atomics find the same value in the same place so often in a row, and change
  // nothing, hangs. Other threads get their turns meanwhile.
  std::uint64_t max_spins = 1'000'000;
};

// What a launch did; `num_accesses` counts loads and stores that the hooks saw (0 without hooks).
struct LaunchStats {
  std::uint64_t num_switches = 0;
  std::uint64_t num_accesses = 0;
  std::size_t shared_bytes = 0;  // dynamic and static, of the block that had most
};

enum class FaultKind : std::uint8_t {
  kOutOfBounds,          // no buffer, shared variable, parameter or constant there
  kReadOnly,             // a store to a buffer registered as read-only, or to a constant
  kForeignStack,         // a local variable of another thread
  kHostMemory,           // the host's stack or variables: a parameter was captured by reference?
  kMisaligned,           // atomic, asynchronous copy or matrix load off its alignment
  kUninitialised,        // a read of shared or undefined global memory that nobody wrote
  kRace,                 // two accesses, one of them a store, that nothing orders
  kDivergentBarrier,     // threads wait at different barriers, or left the kernel before one
  kDivergentCollective,  // lanes of one mask in different operations, or gone
  kInactiveLane,         // a shuffle from a lane outside its mask, or a mask without the caller
  kAsyncPending,         // an asynchronous copy was read or overwritten before its wait
  kSharedLimit,          // static and dynamic shared memory together are too large
  kStackOverflow,        // a thread needs more stack than it has
  kHang,                 // an atomic spins and no other thread can run
  kException,            // the kernel threw
  kCheckFailed,          // simt::check in the kernel
};

// "out of bounds", "race", ...
const char* fault_kind_name(FaultKind kind) noexcept;

// A fault with everything that is known of it; message is what KernelFault::what() returns.
struct FaultReport {
  FaultKind kind = FaultKind::kCheckFailed;
  std::string kernel;
  Dim3 block = {};
  Dim3 thread = {};
  std::uintptr_t address = 0;  // of the access, 0 where there is none
  std::size_t bytes = 0;
  std::string where;  // function and source line, as far as the program can tell
  std::string message;
};

class KernelFault : public Error {
 public:
  explicit KernelFault(FaultReport report)
      : Error(ErrorCode::kDevice, report.message), report_(std::move(report)) {}
  const FaultReport& report() const noexcept { return report_; }
  FaultKind kind() const noexcept { return report_.kind; }

 private:
  FaultReport report_;
};

enum class Access : std::uint8_t { kReadOnly, kReadWrite };
// kUndefined: reading a byte that no kernel wrote since the registration is a fault.
enum class Contents : std::uint8_t { kDefined, kUndefined };

// Lets kernels touch [data, data + bytes) for as long as this object lives; reports call it `name`.
// REQUIRES: it overlaps no other registered buffer; no launch is running in this thread.
class GlobalBuffer {
 public:
  GlobalBuffer(const void* data, std::size_t bytes, std::string name, Access access,
               Contents contents = Contents::kDefined);
  ~GlobalBuffer();
  GlobalBuffer(const GlobalBuffer&) = delete;
  GlobalBuffer& operator=(const GlobalBuffer&) = delete;

  // The host wrote, or forgot, what lies at [offset, offset + bytes): for kUndefined buffers.
  void set_defined(std::size_t offset, std::size_t bytes, bool defined);

 private:
  std::uintptr_t begin_;
  std::shared_ptr<internal::RegisteredBuffer> registered_;  // null for an empty buffer
};

// Whether the kernels of this program pass their loads and stores through the emulator. Without
// hooks (sanitizer builds) a launch computes the same and still sees bad barriers, masks and
// addresses given to collectives, copies and atomics; races and uninitialised reads it cannot.
bool hooks_present() noexcept;

namespace internal {
using KernelEntry = void (*)(const void* parameters);
LaunchStats launch(const char* kernel, const LaunchShape& shape, const LaunchOptions& options,
                   KernelEntry entry, const void* parameters, std::size_t parameter_bytes);
}  // namespace internal

// Runs `kernel()` once for every thread of the grid. The callable is copied as bytes, as the
// parameters of a GPU kernel are: capture by value. `name` appears in reports.
// Throws KernelFault for what the kernel does wrong, Error(kInvalidArgument) for a bad shape.
template <class Kernel>
LaunchStats launch(const char* name, const LaunchShape& shape, const Kernel& kernel,
                   const LaunchOptions& options = {}) {
  static_assert(std::is_trivially_copyable_v<Kernel>, "kernel parameters are copied as bytes");
  static_assert(alignof(Kernel) <= 64);
  return internal::launch(
      name, shape, options,
      [](const void* parameters) { (*static_cast<const Kernel*>(parameters))(); }, &kernel,
      sizeof(Kernel));
}

}  // namespace quire::simt
