// SPDX-License-Identifier: Apache-2.0
// Judges every access of a kernel: may this thread touch these bytes, are they defined, and is the
// access ordered after those of other threads. What it finds it throws.
//
// Without hooks only part of the accesses come by, so only their bounds and permissions are judged.
//
// Thread safety: none; one launch owns it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/emulator/access_history.h"
#include "gpu/emulator/fault.h"
#include "gpu/emulator/fiber.h"
#include "gpu/emulator/global_memory.h"
#include "gpu/emulator/happens_before.h"
#include "gpu/emulator/program_map.h"
#include "gpu/emulator/shared_memory.h"

namespace quire::simt::internal {

struct MemoryAccess {
  int thread = 0;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  AccessKind kind = AccessKind::kRead;
  const void* pc = nullptr;
  Site site = {};
};

class MemoryChecker {
 public:
  struct Parts {
    HappensBefore& order;
    SharedMemory& shared;
    const FiberSet& fibers;
    StackRange host_stack;
    StackRange parameters;
  };
  MemoryChecker(const Parts& parts, const LaunchShape& shape, const LaunchOptions& options,
                bool track_histories);

  void begin_block();

  void check(const MemoryAccess& access);
  // A load from shared memory by the lanes of a mask together with access.thread, which is one of
  // them. REQUIRES: is_shared(access.address).
  void check_warp_read(const MemoryAccess& access, LaneMask lanes);
  [[noreturn]] void raise(FaultKind kind, const MemoryAccess& access, std::string text,
                          const std::optional<EarlierAccess>& earlier = std::nullopt);
  bool is_shared(std::uintptr_t address) const { return parts_.shared.contains(address); }
  // Shared memory or a registered buffer.
  bool is_device_memory(std::uintptr_t address) {
    return is_shared(address) || global_.find(address) != nullptr;
  }

  // An asynchronous copy to `destination` (a write) is under way from begin to end.
  // REQUIRES: begin_copy was called with the same access before end_copy.
  void begin_copy(const MemoryAccess& destination);
  void end_copy(const MemoryAccess& destination);

 private:
  template <class F>
  void visit_shared(const MemoryAccess& access, F&& f);
  void check_shared_bounds(const MemoryAccess& access);
  void check_shared(const MemoryAccess& access);
  void check_state(const MemoryAccess& access, const ByteHistory& byte);
  void check_shared_byte(const MemoryAccess& access, ByteHistory& byte);
  void check_global(const MemoryAccess& access, GlobalMemory::Buffer& buffer);
  void check_elsewhere(const MemoryAccess& access);
  Parts parts_;
  int warp_width_;
  bool track_;
  bool check_uninitialised_;
  GlobalMemory global_;
  ProgramMap program_;
  AccessHistory shared_history_;
  AccessHistory global_history_;
};

}  // namespace quire::simt::internal
