// SPDX-License-Identifier: Apache-2.0
// The functions of simt.h and atomics.h: they leave kernel code, and hand over to the launch.
#include <bit>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt {

using internal::AccessKind;
using internal::Launch;
using internal::running_launch;

// The address that the calling function returns to, in the kernel.
#define QUIRE_SIMT_CALLER __builtin_return_address(0)

Dim3 thread_idx() noexcept {
  return running_launch->thread(running_launch->current()).index;
}
Dim3 block_idx() noexcept {
  return running_launch->block();
}
Dim3 block_dim() noexcept {
  return running_launch->shape().block;
}
Dim3 grid_dim() noexcept {
  return running_launch->shape().grid;
}
int lane_id() noexcept {
  return running_launch->current() % running_launch->shape().warp_width;
}
int warp_id() noexcept {
  return running_launch->warp_of(running_launch->current());
}
int warp_width() noexcept {
  return running_launch->shape().warp_width;
}

void sync_threads(Site site) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  Launch::enter([=](Launch& launch) { launch.sync_threads(site, pc); });
}

void sync_warp(LaneMask mask, Site site) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  Launch::enter([=](Launch& launch) {
    launch.collective({.run = nullptr,
                       .name = "sync_warp",
                       .operands = nullptr,
                       .mask = mask,
                       .site = site,
                       .pc = pc});
  });
}

void warp_collective(CollectiveFunction run, const char* name, void* operands, LaneMask mask,
                     Site site) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  Launch::enter([=](Launch& launch) {
    launch.collective(
        {.run = run, .name = name, .operands = operands, .mask = mask, .site = site, .pc = pc});
  });
}

namespace {

void check_lane_access(int lane, const void* address, std::size_t bytes, AccessKind kind) {
  Launch::enter([=](Launch& launch) {
    const int thread = launch.thread_of_lane(lane);
    const internal::ThreadRecord& record = launch.thread(thread);
    launch.checker().check({.thread = thread,
                            .address = reinterpret_cast<std::uintptr_t>(address),
                            .bytes = bytes,
                            .kind = kind,
                            .pc = record.pc,
                            .site = record.site});
  });
}

}  // namespace

void check_lane_read(int lane, const void* address, std::size_t bytes) noexcept {
  check_lane_access(lane, address, bytes, AccessKind::kRead);
}

void check_lane_write(int lane, const void* address, std::size_t bytes) noexcept {
  check_lane_access(lane, address, bytes, AccessKind::kWrite);
}

void fence_block() noexcept {
  Launch::enter(
      [](Launch& launch) { launch.order().fence(launch.current(), internal::Scope::kBlock); });
}

void fence_device() noexcept {
  Launch::enter(
      [](Launch& launch) { launch.order().fence(launch.current(), internal::Scope::kDevice); });
}

void copy_async(void* shared_destination, const void* global_source, int bytes, int source_bytes,
                Site site) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  Launch::enter([=](Launch& launch) {
    launch.copy_async({.destination = shared_destination,
                       .source = global_source,
                       .bytes = bytes,
                       .source_bytes = source_bytes,
                       .pc = pc,
                       .site = site});
  });
}

void copy_async_commit() noexcept {
  Launch::enter([](Launch& launch) { launch.copy_async_commit(); });
}

void copy_async_wait(int groups_left) noexcept {
  Launch::enter([=](Launch& launch) { launch.copy_async_wait(groups_left); });
}

void* dynamic_shared() noexcept {
  return running_launch->shared().dynamic();
}

void check(bool condition, const char* text, Site site) noexcept {
  if (condition) [[likely]]
    return;
  const void* const pc = QUIRE_SIMT_CALLER;
  Launch::enter([=](Launch& launch) { launch.raise(FaultKind::kCheckFailed, text, site, pc); });
}

namespace internal {

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment,
                    const char* name) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  return Launch::enter(
      [=](Launch& launch) { return launch.static_shared(key, bytes, alignment, name, pc); });
}

std::uint64_t atomic(void* address, std::size_t bytes, const AtomicOperation& operation,
                     Site site) noexcept {
  const void* const pc = QUIRE_SIMT_CALLER;
  return Launch::enter(
      [&](Launch& launch) { return launch.atomic(address, bytes, operation, site, pc); });
}

}  // namespace internal
}  // namespace quire::simt
