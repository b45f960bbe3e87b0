// SPDX-License-Identifier: Apache-2.0
// Copies: to the host and back, handing out the lists, and letting go of what they held.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"
#include "kv/reserve_more.h"

namespace quire {

bool BlockManager::can_swap_out(SequenceId id) const {
  const State& state = *state_;
  const SequenceRecord& sequence = state.find_resident(id, "be swapped out");
  require(sequence.num_appended == 0, "sequence ", id, " cannot be swapped out with ",
          sequence.num_appended, " tokens appended and not committed");
  for (std::size_t p = 0; p < state.pools.size(); ++p) {
    if (state.num_held(sequence, p) > state.pools[p].host.num_free()) return false;
  }
  return true;
}

std::int64_t BlockManager::State::num_held(const SequenceRecord& sequence, std::size_t p) const {
  std::int64_t num_blocks = 0;
  for (int g = 0; g < num_groups(); ++g) {
    if (static_cast<std::size_t>(group(g).pool) != p) continue;
    for (const BlockId block : sequence.table(g).blocks) num_blocks += block != kNullBlock;
  }
  return num_blocks;
}

// One block of a table moves to the host; its place on the device is given back when the copy is
// done.
void BlockManager::State::move_to_host(int g, BlockId& entry) {
  PoolState& pool = pool_of(g);
  const PlacedBlock src = pin_source(g, {.block = entry});
  const BlockId host = pool.host.allocate().block;
  QUIRE_CHECK(host != kNullBlock);
  if (options.prefix_cache && pool.index.contains(entry)) {
    pool.host_index.insert(host, pool.index.key(entry));
  }
  add_copy(g, src, {.block = host, .side = Side::kHost});
  release(g, entry);
  entry = host;
  ++counters.num_swapped_out;
}

bool BlockManager::swap_out(SequenceId id) {
  if (!can_swap_out(id)) return false;
  State& state = *state_;
  SequenceRecord& sequence = state.find(id);
  std::size_t num_copies = 0;
  for (std::size_t p = 0; p < state.pools.size(); ++p) {
    num_copies += static_cast<std::size_t>(state.num_held(sequence, p));
  }
  state.copies.reserve(num_copies);
  // From here on nothing throws. Last blocks first: completion releases in this order.
  for (std::int64_t i = state.num_blocks_for(sequence.num_tokens); i-- > 0;) {
    for (int g = 0; g < state.num_groups(); ++g) {
      if (state.is_cross(g)) continue;
      BlockId& entry = sequence.table(g).blocks[static_cast<std::size_t>(i)];
      if (entry != kNullBlock) state.move_to_host(g, entry);
    }
  }
  for (int g = 0; g < state.num_groups(); ++g) {
    if (!state.is_cross(g)) continue;
    for (BlockId& entry : sequence.table(g).blocks) state.move_to_host(g, entry);
  }
  sequence.status = SequenceRecord::Status::kSwapped;
  state.changed();
  return true;
}

// Fills `found` with the blocks that still hold the content on the device.
std::int64_t BlockManager::State::num_to_swap_in(const SequenceRecord& sequence,
                                                 std::size_t p) const {
  const PoolState& pool = pools[p];
  std::int64_t num_blocks = 0;
  for (int g = 0; g < num_groups(); ++g) {
    if (static_cast<std::size_t>(group(g).pool) != p) continue;
    std::vector<BlockId>& hits = found[static_cast<std::size_t>(g)];
    hits.clear();
    reserve_more(hits, sequence.table(g).blocks.size());
    for (const BlockId block : sequence.table(g).blocks) {
      const bool is_known =
          block != kNullBlock && sequence.shares && pool.host_index.contains(block);
      hits.push_back(is_known ? pool.index.find(pool.host_index.key(block)) : kNullBlock);
      if (block == kNullBlock) continue;
      num_blocks += hits.back() == kNullBlock || pool.device.is_evictable(hits.back());
    }
  }
  return num_blocks;
}

// Blocks for tokens that are appended once it is back. A last block that others find as a hit too
// is shared, and copied before it is written.
std::int64_t BlockManager::State::num_grown(const SequenceRecord& sequence, std::int64_t num_tokens,
                                            std::size_t p) const {
  if (num_tokens == 0) return 0;
  const std::int64_t num_more =
      num_blocks_for(sequence.num_tokens + num_tokens) - num_blocks_for(sequence.num_tokens);
  const bool has_tail = sequence.num_tokens % options.block_size != 0;
  std::int64_t num_blocks = 0;
  for (int g = 0; g < num_groups(); ++g) {
    if (static_cast<std::size_t>(group(g).pool) != p || is_cross(g)) continue;
    const bool copies_tail = has_tail && found[static_cast<std::size_t>(g)].back() != kNullBlock;
    num_blocks += num_more + (copies_tail ? 1 : 0);
  }
  return num_blocks;
}

AdmitStatus BlockManager::State::swap_in_status(const SequenceRecord& sequence,
                                                std::int64_t num_tokens) const {
  AdmitStatus status = AdmitStatus::kNow;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    const PoolState& pool = pools[p];
    const std::int64_t num_to_move = num_to_swap_in(sequence, p);
    const std::int64_t num_more = num_grown(sequence, num_tokens, p);
    // A sequence may have grown into the watermark: what it leaves when alone is enough.
    const std::int64_t left_alone = pool.device.num_usable() - num_held(sequence, p);
    if (left_alone < 0) return AdmitStatus::kNever;
    const std::int64_t watermark =
        std::min(pool.watermark, std::max<std::int64_t>(left_alone - num_more, 0));
    if (pool.device.num_available() - num_to_move - num_more < watermark) {
      status = AdmitStatus::kLater;
    }
  }
  return status;
}

const SequenceRecord& BlockManager::State::find_swapped(SequenceId id,
                                                        std::int64_t num_tokens) const {
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  const SequenceRecord& sequence = find(id);
  require(sequence.status == SequenceRecord::Status::kSwapped, "sequence ", id,
          " is not swapped out");
  require(num_tokens >= 0 && num_tokens <= kMaxTokens - sequence.num_tokens, "sequence ", id,
          " can append between 0 and ", kMaxTokens - sequence.num_tokens, " tokens, not ",
          num_tokens);
  return sequence;
}

AdmitStatus BlockManager::can_swap_in(SequenceId id, std::int64_t num_tokens) const {
  return state_->swap_in_status(state_->find_swapped(id, num_tokens), num_tokens);
}

std::int64_t BlockManager::num_blocks_to_swap_in(SequenceId id, std::int64_t num_tokens,
                                                 int pool) const {
  const SequenceRecord& sequence = state_->find_swapped(id, num_tokens);
  state_->require_pool(pool);
  const auto p = static_cast<std::size_t>(pool);
  return state_->num_to_swap_in(sequence, p) + state_->num_grown(sequence, num_tokens, p);
}

void BlockManager::State::move_to_device(const SequenceRecord& sequence, int g, BlockId& entry) {
  PoolState& pool = pool_of(g);
  const BlockId host = entry;
  const PlacedBlock src = pin_source(g, {.block = host, .side = Side::kHost});
  entry = acquire(g);
  add_copy(g, src, {.block = entry});
  if (sequence.shares && pool.host_index.contains(host)) {
    publish(g, entry, pool.host_index.key(host));
  }
  release_host(g, host);
  ++counters.num_swapped_in;
}

bool BlockManager::swap_in(SequenceId id) {
  if (can_swap_in(id) != AdmitStatus::kNow) return false;
  State& state = *state_;
  SequenceRecord& sequence = state.find(id);
  std::size_t num_copies = 0;
  for (const SequenceTable& table : sequence.tables) num_copies += table.blocks.size();
  state.copies.reserve(num_copies);
  // From here on nothing throws. Hits first, so that no eviction takes them.
  for (int g = 0; g < state.num_groups(); ++g) {
    std::vector<BlockId>& blocks = sequence.table(g).blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockId hit = state.found_block(g, static_cast<std::int64_t>(i));
      if (hit == kNullBlock) continue;
      state.pool_of(g).device.add_ref(hit);
      state.release_host(g, blocks[i]);
      blocks[i] = hit;
      ++state.counters.num_swap_hits;
    }
  }
  for (int g = 0; g < state.num_groups(); ++g) {
    std::vector<BlockId>& blocks = sequence.table(g).blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const bool is_on_host = blocks[i] != kNullBlock &&
                              state.found_block(g, static_cast<std::int64_t>(i)) == kNullBlock;
      if (is_on_host) state.move_to_device(sequence, g, blocks[i]);
    }
    if (is_broken(Mutant::kSwapsInReverse)) std::ranges::reverse(blocks);
  }
  sequence.status = SequenceRecord::Status::kResident;
  state.changed();
  return true;
}

CopyLists BlockManager::take_copies() {
  State& state = *state_;
  const std::size_t num_waiting = state.copies.waiting().size();
  const CopyLists lists = state.copies.take();
  for (const PendingCopy& copy : state.copies.all().last(num_waiting)) {
    PoolState& pool = state.pool_of(copy.group);
    (copy.dst.side == Side::kDevice ? pool.device : pool.host).set_note(copy.dst.block, 0);
  }
  if (is_broken(Mutant::kUnpinsOnTake)) complete_copies(lists.ticket);
  return lists;
}

void BlockManager::complete_copies(std::uint64_t ticket) {
  State& state = *state_;
  const std::size_t num_copies = state.copies.num_covered(ticket);
  for (const PendingCopy& copy : state.copies.all().first(num_copies)) {
    state.unpin(copy.group, copy.src);
    state.unpin(copy.group, copy.dst);
  }
  state.copies.pop(ticket, num_copies);
  state.changed();
}

}  // namespace quire
