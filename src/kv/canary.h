// SPDX-License-Identifier: Apache-2.0
// Finds the first write to a slot that belongs to somebody else: a debugging aid for engines and
// kernels, for caches in host memory.
//
// It keeps a fingerprint of the bytes of every slot, made when its K and V have been stored, and
// who stored them. verify() compares all slots that sequences can see with their fingerprints: one
// that has changed since was overwritten by a step or a copy that had no right to. After every
// step:
//   canary.copied(copies); ... append, attend ...; canary.stored(id, slots); canary.verify();
// Costs 16 bytes per slot and reads all that sequences can see once per verify; allocates only when
// it is made. Engine has it as an option. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/copy_queue.h"
#include "quire/block_manager.h"
#include "quire/kv_cache.h"

namespace quire {

class KvCanary {
 public:
  // The layers of one group to be watched, all of them or a few; `host_layers` for swapped blocks,
  // or none. `manager` and the memory must outlive it.
  // REQUIRES: layers in host memory, in a layout that is not opaque.
  KvCanary(const BlockManager& manager, int group, std::span<const KvCacheView> layers,
           std::span<const KvCacheView> host_layers = {});

  // A step has stored K and V of a sequence in these slots, committed or not.
  void stored(SequenceId id, std::span<const std::int64_t> slots);
  // These copies have run. [num_groups], all groups of the manager
  void copied(std::span<const GroupCopies> copies);
  // Throws Error(kInternal) naming the sequence, token, block and slot, and who had stored it.
  void verify() const;

 private:
  struct Watched {
    std::vector<KvCacheView> layers;
    std::vector<std::uint64_t> prints;  // [num_blocks * block_size]
    std::vector<SequenceId> storers;    // [num_blocks * block_size]
  };

  void watch(Side which, std::span<const KvCacheView> layers);
  std::uint64_t print_of(const Watched& watched, BlockId block, std::int64_t token) const;
  void copy_prints(Side from, Side to, std::span<const BlockCopy> copies);
  const Watched& side(Side which) const { return sides_[static_cast<std::size_t>(which)]; }
  Watched& side(Side which) { return sides_[static_cast<std::size_t>(which)]; }

  const BlockManager& manager_;
  int group_;
  std::array<Watched, 2> sides_;  // device ids, host ids
};

}  // namespace quire
