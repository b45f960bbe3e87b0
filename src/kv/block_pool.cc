// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kv/mutation.h"

namespace quire {
namespace {

std::size_t index_of(std::int64_t block) noexcept {
  return static_cast<std::size_t>(block);
}

void require_size(std::int64_t num_blocks) {
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<BlockId>::max();
  require(num_blocks >= 1 && num_blocks <= kMaxBlocks, "a pool has between 1 and ", kMaxBlocks,
          " blocks, the null block included, not ", num_blocks);
}

}  // namespace

BlockPool::BlockPool(std::int64_t num_blocks) {
  require_size(num_blocks);
  blocks_.resize(index_of(num_blocks));
  blocks_[kNullBlock].prev = kNullBlock;
  limit_ = num_blocks;
  rebuild_free_stack();
}

// Lowest ids on top: fresh blocks are handed out in memory order.
void BlockPool::rebuild_free_stack() noexcept {
  free_top_ = kNullBlock;
  num_free_ = 0;
  for (std::int64_t id = limit_ - 1; id > kNullBlock; --id) {
    const Block& block = blocks_[index_of(id)];
    if (block.num_refs == 0 && block.prev == kFree) push_free(static_cast<BlockId>(id));
  }
}

const BlockPool::Block& BlockPool::at(BlockId block) const {
  if (block <= kNullBlock || index_of(block) >= blocks_.size()) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, "block ", block, " is not one of 1 to ", blocks_.size() - 1);
  }
  return blocks_[index_of(block)];
}

const BlockPool::Block& BlockPool::in_use(BlockId block) const {
  const Block& record = at(block);
  require(record.num_refs > 0, "block ", block, " is not in use");
  return record;
}

void BlockPool::unlink(Block& record) noexcept {
  blocks_[index_of(record.prev)].next = record.next;
  blocks_[index_of(record.next)].prev = record.prev;
  --num_evictable_;
}

void BlockPool::push_free(BlockId block) noexcept {
  Block& record = blocks_[index_of(block)];
  record.prev = kFree;
  record.next = free_top_;
  free_top_ = block;
  ++num_free_;
}

BlockPool::Allocation BlockPool::allocate() noexcept {
  Allocation allocation;
  if (free_top_ != kNullBlock) {
    allocation.block = free_top_;
    free_top_ = blocks_[index_of(free_top_)].next;
    __builtin_prefetch(&blocks_[index_of(free_top_)]);  // a large pool's stack is all cache misses
    --num_free_;
  } else {
    const Block& ends = blocks_[kNullBlock];
    allocation.block = is_broken(Mutant::kEvictsNewest) ? ends.prev : ends.next;
    if (allocation.block == kNullBlock) return allocation;
    allocation.evicted = true;
    unlink(blocks_[index_of(allocation.block)]);
    __builtin_prefetch(&blocks_[index_of(blocks_[index_of(ends.next)].next)]);
  }
  Block& record = blocks_[index_of(allocation.block)];
  record.num_refs = 1;
  record.num_pins = 0;
  record.next = 0;
  ++num_in_use_;
  return allocation;
}

void BlockPool::add_ref(BlockId block) {
  Block& record = at(block);
  if (record.num_refs == 0) {
    require(record.prev >= 0, "block ", block, " is free: nothing to refer to");
    unlink(record);
    record.num_pins = 0;
    record.next = 0;
    ++num_in_use_;
  }
  ++record.num_refs;
}

bool BlockPool::release_to_free(BlockId block) {
  Block& record = in_use(block);
  QUIRE_DCHECK(record.num_refs > record.num_pins);
  if (--record.num_refs > 0) return false;
  --num_in_use_;
  become_free(block);
  return true;
}

bool BlockPool::release_to_evictable(BlockId block, BlockId before) {
  Block& record = in_use(block);
  require(before == kNullBlock || is_evictable(before), "block ", before, " is not evictable");
  if (block >= limit_) return release_to_free(block);
  if (--record.num_refs > 0) return false;
  --num_in_use_;
  ++num_evictable_;
  Block& successor = blocks_[index_of(before)];
  record.prev = successor.prev;
  record.next = before;
  blocks_[index_of(record.prev)].next = block;
  successor.prev = block;
  return true;
}

void BlockPool::drop(BlockId block) {
  require(is_evictable(block), "block ", block, " is not evictable");
  unlink(at(block));
  push_free(block);
}

void BlockPool::become_free(BlockId block) noexcept {
  if (block >= limit_) {
    retire(block);
  } else {
    push_free(block);
  }
}

void BlockPool::retire(BlockId block) noexcept {
  blocks_[index_of(block)].prev = kRetired;
  --num_beyond_;
  if (num_beyond_ == 0) blocks_.resize(index_of(limit_));
}

void BlockPool::pin(BlockId block) {
  add_ref(block);
  ++at(block).num_pins;
}

void BlockPool::unpin(BlockId block) {
  Block& record = in_use(block);
  require(record.num_pins > 0, "block ", block, " is not pinned");
  --record.num_pins;
}

std::int32_t BlockPool::note(BlockId block) const {
  return in_use(block).next;
}

void BlockPool::set_note(BlockId block, std::int32_t note) {
  in_use(block).next = note;
}

bool BlockPool::resize(std::int64_t num_blocks) {
  require_size(num_blocks);
  for (BlockId id = oldest_evictable(); id != kNullBlock; id = next_evictable(id)) {
    require(id < num_blocks, "block ", id, " is evictable and beyond the new size ", num_blocks);
  }
  if (num_blocks > id_limit()) blocks_.resize(index_of(num_blocks));  // the only step that throws
  limit_ = num_blocks;
  num_beyond_ = 0;
  for (std::int64_t id = 1; id < id_limit(); ++id) {
    Block& record = blocks_[index_of(id)];
    if (record.num_refs > 0) {
      num_beyond_ += id >= limit_;
    } else if (record.prev < 0) {
      record.prev = id >= limit_ ? kRetired : kFree;
    }
  }
  rebuild_free_stack();
  if (num_beyond_ == 0) blocks_.resize(index_of(limit_));
  return num_beyond_ == 0;
}

void BlockPool::validate() const {
  std::int64_t num_free = 0;
  std::int64_t num_evictable = 0;
  std::int64_t num_in_use = 0;
  std::int64_t num_beyond = 0;
  for (std::int64_t id = 1; id < id_limit(); ++id) {
    const Block& record = blocks_[index_of(id)];
    const bool is_used = record.num_refs > 0;
    num_in_use += is_used;
    num_beyond += is_used && id >= limit_;
    num_free += !is_used && record.prev == kFree;
    num_evictable += !is_used && record.prev >= 0;
    if (record.num_refs < 0 || (is_used && record.num_pins > record.num_refs) ||
        (is_used && record.num_pins < 0) || (!is_used && id >= limit_ && record.prev != kRetired) ||
        (!is_used && id < limit_ && record.prev == kRetired)) {
      fail(ErrorCode::kInternal, "block ", id, " is in no valid state: ", record.num_refs,
           " references, ", record.num_pins, " pins, mark ", record.prev);
    }
  }
  if (num_free != num_free_ || num_evictable != num_evictable_ || num_in_use != num_in_use_ ||
      num_beyond != num_beyond_) {
    fail(ErrorCode::kInternal, "counts of free, evictable, used and retiring blocks are ",
         num_free_, ", ", num_evictable_, ", ", num_in_use_, ", ", num_beyond_, ", but there are ",
         num_free, ", ", num_evictable, ", ", num_in_use, ", ", num_beyond);
  }
  std::int64_t num_listed = 0;
  BlockId prev = kNullBlock;
  for (BlockId id = oldest_evictable(); id != kNullBlock; id = blocks_[index_of(id)].next) {
    const Block& record = blocks_[index_of(id)];
    if (record.prev != prev || record.num_refs != 0 || ++num_listed > num_evictable) {
      fail(ErrorCode::kInternal, "the eviction list is broken at block ", id);
    }
    prev = id;
  }
  std::int64_t num_stacked = 0;
  for (BlockId id = free_top_; id != kNullBlock; id = blocks_[index_of(id)].next) {
    const Block& record = blocks_[index_of(id)];
    if (record.prev != kFree || record.num_refs != 0 || ++num_stacked > num_free) {
      fail(ErrorCode::kInternal, "the free stack is broken at block ", id);
    }
  }
  if (num_listed != num_evictable || num_stacked != num_free || blocks_[kNullBlock].prev != prev) {
    fail(ErrorCode::kInternal, "the lists hold ", num_stacked, " free and ", num_listed,
         " evictable blocks of ", num_free, " and ", num_evictable);
  }
}

}  // namespace quire
