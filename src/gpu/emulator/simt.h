// SPDX-License-Identifier: Apache-2.0
// What a kernel calls when it runs on the emulator: indices, barriers, collectives of a warp,
// asynchronous copies, shared memory; atomics.h with fences and atomics comes with it, matrix.h
// adds matrix fragments, launch.h is the host side. Only code that runs inside simt::launch may
// call these functions.
//
// Memory model (docs/gpu_emulator.md):
// - sync_threads orders everything between the threads of a block; sync_warp between the lanes of
//   its mask. Shuffles, votes and matrix operations order nothing.
// - Atomics are relaxed. What a thread did before a fence is visible to whoever fences after an
//   atomic that read from an atomic after that fence; barriers carry both halves to other threads:
//   "store; fence; sync_threads; one thread adds" and "one thread adds; sync_threads; fence; load".
// - An asynchronous copy happens at the wait that covers it. From its issue to that wait nobody may
//   touch its destination; after it, other threads still need a barrier.
//
// Collectives: every lane of the mask must come with the same operation and the same mask.
// `Site` arguments are the caller's source line: barriers are told apart by it, and reports name
// it. A wrapper should take one as a default argument of its own and pass it on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/emulator/atomics.h"
#include "gpu/emulator/launch.h"
#include "gpu/emulator/site.h"

namespace quire::simt {

// Bit i is lane i. Lanes beyond the block's last thread count for nothing, so kFullMask serves
// every warp of either width.
using LaneMask = std::uint64_t;
inline constexpr LaneMask kFullMask = ~LaneMask{0};

// Who am I. They never change within a thread, which `const` tells the compiler.
[[gnu::const]] Dim3 thread_idx() noexcept;
[[gnu::const]] Dim3 block_idx() noexcept;
[[gnu::const]] Dim3 block_dim() noexcept;
[[gnu::const]] Dim3 grid_dim() noexcept;
[[gnu::const]] int lane_id() noexcept;     // [0, warp_width)
[[gnu::const]] int warp_id() noexcept;     // linear thread index / warp_width
[[gnu::const]] int warp_width() noexcept;  // 32 or 64

// --- barriers
// Every thread of the block must come to the same sync_threads; none may have left the kernel.
void sync_threads(Site site = Site::here()) noexcept;
void sync_warp(LaneMask mask = kFullMask, Site site = Site::here()) noexcept;

// --- collectives of a warp
namespace internal {
enum class ShuffleKind : std::uint8_t { kIndex, kXor, kUp, kDown };
std::uint64_t shuffle(ShuffleKind kind, std::uint64_t bits, int operand, LaneMask mask,
                      Site site) noexcept;
}  // namespace internal

// The value of lane `source` modulo the warp width. T has 4 or 8 bytes in all shuffles.
template <class T>
T shuffle(T value, int source, LaneMask mask = kFullMask, Site site = Site::here()) noexcept {
  return internal::from_bits<T>(internal::shuffle(internal::ShuffleKind::kIndex,
                                                  internal::to_bits(value), source, mask, site));
}
// The value of lane_id() ^ lane_xor.
template <class T>
T shuffle_xor(T value, int lane_xor, LaneMask mask = kFullMask, Site site = Site::here()) noexcept {
  return internal::from_bits<T>(internal::shuffle(internal::ShuffleKind::kXor,
                                                  internal::to_bits(value), lane_xor, mask, site));
}
// The value of lane_id() - delta; the own value where that is below 0.
template <class T>
T shuffle_up(T value, int delta, LaneMask mask = kFullMask, Site site = Site::here()) noexcept {
  return internal::from_bits<T>(
      internal::shuffle(internal::ShuffleKind::kUp, internal::to_bits(value), delta, mask, site));
}
// The value of lane_id() + delta; the own value where that is beyond the warp.
template <class T>
T shuffle_down(T value, int delta, LaneMask mask = kFullMask, Site site = Site::here()) noexcept {
  return internal::from_bits<T>(
      internal::shuffle(internal::ShuffleKind::kDown, internal::to_bits(value), delta, mask, site));
}

// The lanes of the mask whose predicate holds; any and all follow from it.
LaneMask ballot(bool predicate, LaneMask mask = kFullMask, Site site = Site::here()) noexcept;
bool any(bool predicate, LaneMask mask = kFullMask, Site site = Site::here()) noexcept;
bool all(bool predicate, LaneMask mask = kFullMask, Site site = Site::here()) noexcept;

// The primitive below all of them: every lane of the mask brings a pointer to its own operands, and
// when the last has come, `run` is called once with all of them; then the lanes go on. `run` may
// read and write the operands of every lane; what else it touches is not checked, except by the
// functions below. Lanes meet only if their `run` is the same function.
struct Lanes {
  LaneMask mask;  // the lanes that take part
  int warp_width;
  void* const* operands;  // [warp_width], null outside the mask
};
using CollectiveFunction = void (*)(const Lanes& lanes);
void warp_collective(CollectiveFunction run, const char* name, void* operands,
                     LaneMask mask = kFullMask, Site site = Site::here()) noexcept;
// Inside `run`: that `lane` loads or stores here, checked as its own load or store would be.
void check_lane_read(int lane, const void* address, std::size_t bytes) noexcept;
void check_lane_write(int lane, const void* address, std::size_t bytes) noexcept;

// --- asynchronous copy, as cp.async with its groups
// Copies `source_bytes` from global to shared memory and fills up to `bytes` with zeros; with
// source_bytes 0 the source is not looked at.
// REQUIRES: bytes is 4, 8 or 16, both addresses are multiples of it, 0 <= source_bytes <= bytes.
void copy_async(void* shared_destination, const void* global_source, int bytes, int source_bytes,
                Site site = Site::here()) noexcept;
// Closes a group of what this thread copied since the last one; a group may be empty.
void copy_async_commit() noexcept;
// Waits until at most `groups_left` of the latest groups of this thread are still on their way.
void copy_async_wait(int groups_left) noexcept;

// --- shared memory
// The launch's `shared_bytes`, aligned to 1024; the same for every thread of the block.
void* dynamic_shared() noexcept;

namespace internal {
// The block's variable that `key` stands for. Variables lie apart, so that overruns are seen.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment,
                    const char* name) noexcept;
}  // namespace internal

// NOLINTBEGIN(bugprone-macro-parentheses): names and types cannot have them
// Declares a variable of the block inside a kernel: QUIRE_SIMT_SHARED(float[32], sums). A template
// has one per instantiation, as __shared__ has.
#define QUIRE_SIMT_SHARED(type, name)                                                            \
  static const char quire_simt_key_##name = 0;                                                   \
  auto& name = *static_cast<std::type_identity_t<type>*>(::quire::simt::internal::static_shared( \
      &quire_simt_key_##name, sizeof(std::type_identity_t<type>),                                \
      alignof(std::type_identity_t<type>), #name))
// NOLINTEND(bugprone-macro-parentheses)

// --- assertions of a kernel
// Ends the launch with a fault that says `text` unless the condition holds.
void check(bool condition, const char* text, Site site = Site::here()) noexcept;

}  // namespace quire::simt
