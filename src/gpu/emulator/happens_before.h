// SPDX-License-Identifier: Apache-2.0
// Which access is known to have happened before which: vector clocks, made small by the shape of a
// GPU. Every warp counts steps; whenever a thread publishes what it did (a barrier, a fence, a
// release), its warp goes to the next step. An access is stamped (block, thread, step of the warp).
//
// What thread t knows of thread u is the highest step of u that is over for t:
//   - every thread knows the step at which each warp stood at the last barrier of the block,
//   - every lane knows the step at which its warp stood at its last barrier with a full mask,
//   - the rest (barriers of some lanes, fences with atomics, other blocks) is kept in vectors that
//     exist only where it occurs, are immutable, and are shared between the threads that a barrier
//     made equal.
// So the two barriers cost O(warps), and the answers are exact.
//
// Thread safety: none; one launch owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/emulator/simt.h"

namespace quire::simt::internal {

// Blocks are numbered in the order in which they run, from 1; 0 is nobody.
struct Stamp {
  std::uint32_t block = 0;
  std::uint32_t step = 0;
  std::uint16_t thread = 0;
};

enum class Scope : std::uint8_t { kBlock, kDevice };

class HappensBefore {
 public:
  HappensBefore(int num_threads, int warp_width);

  // Forgets the last block's threads; what they published by atomics on global memory stays.
  void begin_block(std::uint32_t block);

  Stamp now(int thread) const {
    return {block_, step_[warp_of(thread)], static_cast<std::uint16_t>(thread)};
  }
  std::uint32_t step_of_warp(int warp) const { return step_[static_cast<std::size_t>(warp)]; }

  // Whether what `earlier` stamps is over for `thread`.
  bool ordered(const Stamp& earlier, int thread) const {
    if (earlier.block == block_) [[likely]] {
      const std::size_t warp = warp_of(earlier.thread);
      if (earlier.thread == thread || earlier.step <= block_known_[warp]) return true;
      if (warp == warp_of(thread) && earlier.step <= warp_known_[warp]) return true;
    }
    return has_extras_ && knows(acquired_[static_cast<std::size_t>(thread)], earlier);
  }
  // The same for every lane of a warp, as far as barriers of the block and of whole warps tell.
  bool known_to_warp(const Stamp& earlier, int warp) const {
    if (earlier.block != block_) return false;
    const std::size_t of_earlier = warp_of(earlier.thread);
    return earlier.step <= block_known_[of_earlier] ||
           (of_earlier == static_cast<std::size_t>(warp) &&
            earlier.step <= warp_known_[of_earlier]);
  }
  // The same for all threads of a warp's mask that read at one step of this block.
  bool all_ordered(int warp, std::uint32_t step, LaneMask lanes, int thread) const;

  void sync_block();
  // `lanes`: those of the mask that exist.
  void sync_warp(int warp, LaneMask lanes);
  void fence(int thread, Scope scope);
  struct AtomicEffect {
    bool reads = true;
    bool writes = true;
    Order order = Order::kRelaxed;
    bool shared_memory = false;
  };
  void atomic(int thread, std::uintptr_t address, const AtomicEffect& effect);

 private:
  using Steps = std::vector<std::uint32_t>;  // [thread]: the last step known to be over
  struct BlockSteps {
    std::uint32_t block;
    std::shared_ptr<const Steps> steps;
  };
  // Sorted by block; null: nothing.
  using Knowledge = std::shared_ptr<const std::vector<BlockSteps>>;
  // What atomics at one address have published: to everybody, and to the threads of one block.
  struct Published {
    Knowledge device;
    Knowledge block;
    std::uint32_t owner = 0;
  };

  std::size_t warp_of(int thread) const {
    return static_cast<std::size_t>(thread) >> warp_width_log2_;
  }
  static Knowledge join(const Knowledge& a, const Knowledge& b);
  static bool knows(const Knowledge& knowledge, const Stamp& stamp);
  Knowledge only_this_block(const Knowledge& knowledge) const;
  Knowledge snapshot(int thread) const;
  Published& published(std::uintptr_t address, bool shared_memory);
  void acquire(int thread, Scope scope);
  void share_extras(const std::vector<int>& threads);

  int num_threads_;
  unsigned warp_width_log2_;
  std::uint32_t block_ = 0;
  std::vector<std::uint32_t> step_;         // [warp], the current one
  std::vector<std::uint32_t> block_known_;  // [warp], known to the whole block
  std::vector<std::uint32_t> warp_known_;   // [warp], known to all its lanes

  // Of each thread of the block, beyond the arrays above:
  bool has_extras_ = false;          // false: all of these are null
  std::vector<Knowledge> acquired_;  // it knows this
  std::vector<Knowledge> pending_;   // it read this by atomics and will know it after a fence
  std::vector<Knowledge> released_;  // what its atomics publish to every block: its last fence
  std::vector<Knowledge> released_block_;  // the same by fence_block
  std::unordered_map<std::uintptr_t, Published> global_;
  std::unordered_map<std::uintptr_t, Published> shared_;
};

}  // namespace quire::simt::internal
