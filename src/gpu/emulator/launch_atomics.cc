// SPDX-License-Identifier: Apache-2.0
// Atomics: one step of one thread, so plain memory accesses do; what they order is kept apart.
#include <cstring>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt::internal {
namespace {

// How often a thread may find the same value before the others get their turn.
constexpr std::uint64_t kSpinsPerTurn = 16;

}  // namespace

std::uint64_t Launch::atomic(void* address, std::size_t bytes, const AtomicOperation& operation,
                             Site site, const void* pc) {
  const int self = current();
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  const bool writes = operation.update != nullptr;
  const AccessKind kind = !writes           ? AccessKind::kAtomicRead
                          : operation.reads ? AccessKind::kAtomicUpdate
                                            : AccessKind::kAtomicWrite;
  const MemoryAccess access{
      .thread = self, .address = place, .bytes = bytes, .kind = kind, .pc = pc, .site = site};
  if (place % bytes != 0) {
    checker_.raise(FaultKind::kMisaligned, access, "an atomic operation");
  }
  checker_.check(access);
  order_.atomic(self, place,
                {.reads = operation.reads,
                 .writes = writes,
                 .order = operation.order,
                 .shared_memory = shared_.contains(place)});
  std::uint64_t old = 0;
  std::memcpy(&old, address, bytes);
  std::uint64_t replacement = old;
  if (writes) {
    replacement = operation.update(old, operation.operand, operation.expected);
    std::memcpy(address, &replacement, bytes);
  }
  count_spins(place, old, operation.reads && replacement == old, site, pc);
  return old;
}

// An operation that changed nothing and found what the last one found is one more turn of a loop
// that waits for somebody: let them run.
void Launch::count_spins(std::uintptr_t address, std::uint64_t value, bool unchanged, Site site,
                         const void* pc) {
  Spin& spin = thread(current()).spin;
  if (!unchanged || spin.address != address || spin.value != value) {
    spin = {.address = address, .value = value, .count = 0};
    return;
  }
  if (++spin.count > options_.max_spins) {
    raise(FaultKind::kHang,
          concat("an atomic operation found the same value ", spin.count, " times; ",
                 describe_waiting()),
          site, pc);
  }
  if (spin.count % kSpinsPerTurn == 0) scheduler_.yield();
}

}  // namespace quire::simt::internal
