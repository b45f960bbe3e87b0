// SPDX-License-Identifier: Apache-2.0
// Which blocks of a cache are taken: ids, reference counts, and the order of reuse. It knows
// nothing of sequences, contents or memory.
//
// A block is in exactly one state:
//   free       holds nothing; on a stack, so that what was freed last is warm in the caches
//   in use     has references
//   evictable  no references, but its content may be wanted again; on a list, oldest first
//   retired    beyond the end of a pool that has been shrunk
// Block 0 is the null block: in no state, and the two ends of the eviction list.
//
// Allocate, release, add_ref and moves inside the list are O(1) and allocate no memory; only
// construction and resize do. A record has 16 bytes, so that a block costs one cache line.
// Every id is checked. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/kv_ids.h"

namespace quire {

class BlockPool {
 public:
  struct Allocation {
    BlockId block = kNullBlock;  // kNullBlock: none left
    bool evicted = false;        // it was evictable: whoever knows its content must forget it
  };

  // REQUIRES: 1 <= num_blocks <= 2^31 - 1, the null block included.
  explicit BlockPool(std::int64_t num_blocks);

  // A free block, or else the evictable one that was used least recently. It has one reference.
  [[nodiscard]] Allocation allocate() noexcept;

  // One reference more. REQUIRES: the block is in use or evictable.
  void add_ref(BlockId block);

  // One reference less. A block without references becomes free, or evictable: next after `before`
  // is evicted, which the null block (the end of the list) makes the last of all. True if it was
  // the last reference. REQUIRES: the block is in use; `before` is evictable or the null block.
  bool release_to_free(BlockId block);
  bool release_to_evictable(BlockId block, BlockId before = kNullBlock);

  // Makes an evictable block free.
  void drop(BlockId block);

  // A pin is a reference of a copy under way, not of a table: it keeps a block, but does not make
  // it shared. Unpinning is release_*() after unpin().
  void pin(BlockId block);
  void unpin(BlockId block);

  // A number that the owner may keep with a block in use; 0 at first.
  std::int32_t note(BlockId block) const;
  void set_note(BlockId block, std::int32_t note);

  // Growing makes room at once. Shrinking takes the blocks from num_blocks on out of the pool:
  // free ones at once, those in use when they are released. Returns false while some are in use.
  // A later call overrides. REQUIRES: no block from num_blocks on is evictable.
  bool resize(std::int64_t num_blocks);
  bool is_shrinking() const noexcept { return num_beyond_ > 0; }

  std::int32_t num_refs(BlockId block) const { return at(block).num_refs; }  // pins included
  std::int32_t num_pins(BlockId block) const { return in_use(block).num_pins; }
  bool is_in_use(BlockId block) const { return at(block).num_refs > 0; }
  bool is_free(BlockId block) const { return at(block).num_refs == 0 && at(block).prev == kFree; }
  bool is_evictable(BlockId block) const { return at(block).num_refs == 0 && at(block).prev >= 0; }

  // The eviction list: oldest_evictable(), then next_evictable() until the null block.
  BlockId oldest_evictable() const noexcept { return blocks_[kNullBlock].next; }
  BlockId next_evictable(BlockId block) const { return at(block).next; }

  std::int64_t num_blocks() const noexcept { return limit_; }  // null block included
  std::int64_t num_usable() const noexcept { return limit_ - 1; }
  std::int64_t num_free() const noexcept { return num_free_; }
  std::int64_t num_evictable() const noexcept { return num_evictable_; }
  std::int64_t num_in_use() const noexcept { return num_in_use_; }  // beyond the end included
  std::int64_t num_available() const noexcept { return num_free_ + num_evictable_; }
  // One past the largest id that may still be in use; more than num_blocks() while shrinking.
  std::int64_t id_limit() const noexcept { return static_cast<std::int64_t>(blocks_.size()); }

  // Throws Error(kInternal) naming the block whose state contradicts the lists or the counts.
  void validate() const;

 private:
  struct Block {
    std::int32_t num_refs = 0;
    std::int32_t num_pins = 0;       // of num_refs
    std::int32_t prev = kFree;       // evictable: in the list; without references otherwise: a mark
    std::int32_t next = kNullBlock;  // evictable: in the list; free: in the stack; in use: the note
  };
  static_assert(sizeof(Block) == 16);

  static constexpr std::int32_t kFree = -1;
  static constexpr std::int32_t kRetired = -2;

  const Block& at(BlockId block) const;
  const Block& in_use(BlockId block) const;
  Block& at(BlockId block) { return const_cast<Block&>(std::as_const(*this).at(block)); }
  Block& in_use(BlockId block) { return const_cast<Block&>(std::as_const(*this).in_use(block)); }
  void unlink(Block& record) noexcept;
  void push_free(BlockId block) noexcept;
  void retire(BlockId block) noexcept;
  void become_free(BlockId block) noexcept;
  void rebuild_free_stack() noexcept;

  std::vector<Block> blocks_;
  BlockId free_top_ = kNullBlock;
  std::int64_t limit_ = 0;       // ids from here on are retired or wait to be
  std::int64_t num_beyond_ = 0;  // in use from limit_ on
  std::int64_t num_free_ = 0;
  std::int64_t num_evictable_ = 0;
  std::int64_t num_in_use_ = 0;
};

}  // namespace quire
