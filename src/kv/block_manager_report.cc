// SPDX-License-Identifier: Apache-2.0
// The manager as a whole: what it holds, resetting and resizing it, its numbers, its dump.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"

namespace quire {

std::int64_t BlockManager::num_tokens(SequenceId id) const {
  return state_->find(id).num_tokens;
}

std::int64_t BlockManager::num_appended(SequenceId id) const {
  return state_->find(id).num_appended;
}

bool BlockManager::is_swapped(SequenceId id) const {
  return state_->find(id).status == SequenceRecord::Status::kSwapped;
}

std::span<const BlockId> BlockManager::block_table(SequenceId id, int group) const {
  state_->require_group(group);
  return state_->find(id).table(group).blocks;
}

void BlockManager::State::require_pool(int pool) const {
  require(pool >= 0 && static_cast<std::size_t>(pool) < pools.size(), "pool ", pool,
          " is not one of the ", pools.size(), " pools");
}

std::int64_t BlockManager::num_available_blocks(int pool) const {
  state_->require_pool(pool);
  return state_->pools[static_cast<std::size_t>(pool)].device.num_available();
}

void BlockManager::reset_prefix_cache() {
  State& state = *state_;
  if (!state.options.prefix_cache) return;
  for (PoolState& pool : state.pools) {
    while (pool.device.oldest_evictable() != kNullBlock) {
      const BlockId block = pool.device.oldest_evictable();
      pool.index.erase(block);
      pool.device.drop(block);
    }
    if (is_broken(Mutant::kResetKeepsLive)) continue;
    for (std::int64_t id = 1; id < pool.device.id_limit(); ++id) {
      const auto block = static_cast<BlockId>(id);
      if (pool.index.contains(block)) pool.index.erase(block);
    }
    for (std::int64_t id = 1; id < pool.host.id_limit(); ++id) {
      const auto block = static_cast<BlockId>(id);
      if (pool.host_index.contains(block)) pool.host_index.erase(block);
    }
  }
  for (SequenceRecord& sequence : state.sequences) {
    sequence.shares = false;
    sequence.tail.clear();
  }
  state.emit(KvEvent::Kind::kCleared, {});
  state.changed();
}

bool BlockManager::resize(int pool, std::int64_t num_blocks) {
  State& state = *state_;
  state.require_pool(pool);
  PoolState& target = state.pools[static_cast<std::size_t>(pool)];
  require(num_blocks >= 1 && num_blocks <= INT32_MAX, "pool ", pool,
          ": num_blocks must be between 1 and ", INT32_MAX, ", is ", num_blocks);
  if (num_blocks >= target.device.id_limit()) {
    if (state.options.prefix_cache) target.index.resize(num_blocks);
    target.device.resize(num_blocks);
  } else {
    bool must_wait = false;
    for (std::int64_t id = num_blocks; id < target.device.id_limit(); ++id) {
      must_wait |= target.device.is_in_use(static_cast<BlockId>(id));
    }
    // Nobody may find, and so hold on to, what has to go. Without that the oldest go first.
    if (must_wait) reset_prefix_cache();
    std::int64_t num_beyond = 0;
    for (BlockId id = target.device.oldest_evictable(); id != kNullBlock;
         id = target.device.next_evictable(id)) {
      num_beyond += id >= num_blocks;
    }
    while (num_beyond > 0) {
      const BlockId block = target.device.oldest_evictable();
      num_beyond -= block >= num_blocks;
      state.forget(target, block);
      target.device.drop(block);
      ++state.counters.num_evictions;
    }
    target.device.resize(num_blocks);
  }
  state.options.pools[static_cast<std::size_t>(pool)].num_blocks = num_blocks;
  state.changed();
  return !target.device.is_shrinking();
}

void BlockManager::reserve(std::int64_t num_sequences, std::int64_t num_tokens_each) {
  State& state = *state_;
  require(num_sequences >= 0 && num_tokens_each >= 0 && num_tokens_each <= INT32_MAX,
          "cannot reserve for ", num_sequences, " sequences of ", num_tokens_each, " tokens");
  const auto num_blocks = static_cast<std::size_t>(state.num_blocks_for(num_tokens_each));
  const auto num_records = static_cast<std::size_t>(num_sequences);
  if (num_records > state.sequences.size()) {
    state.add_records(num_records - state.sequences.size());
  }
  for (SequenceRecord& sequence : state.sequences) {
    for (SequenceTable& table : sequence.tables) table.blocks.reserve(num_blocks);
  }
  for (std::vector<BlockId>& hits : state.found) hits.reserve(num_blocks);
  state.runs.reserve(num_blocks + 1);
}

namespace {

// Slots of blocks in use that hold no token: those behind the ends of sequences. A shared last
// block counts once.
double num_empty_slots(const SequenceRecord& sequence, const BlockPool& device, int g,
                       bool is_cross, int block_size) {
  const std::int64_t num_tokens = is_cross ? sequence.num_cross_tokens : sequence.num_tokens;
  const std::vector<BlockId>& blocks = sequence.table(g).blocks;
  double empty = 0;
  for (auto i = static_cast<std::size_t>(num_tokens / block_size); i < blocks.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * block_size;
    const std::int64_t filled = std::max<std::int64_t>(num_tokens - first, 0);
    const double holders = device.num_refs(blocks[i]) - device.num_pins(blocks[i]);
    empty += static_cast<double>(block_size - filled) / holders;
  }
  return empty;
}

}  // namespace

BlockStats BlockManager::stats() const {
  const State& state = *state_;
  BlockStats stats = state.counters;
  std::vector<double> empty(state.pools.size());
  for (const SequenceRecord& sequence : state.sequences) {
    if (sequence.status == SequenceRecord::Status::kFree) continue;
    ++stats.num_sequences;
    stats.num_swapped += sequence.status == SequenceRecord::Status::kSwapped;
    if (sequence.status == SequenceRecord::Status::kSwapped) continue;
    for (int g = 0; g < state.num_groups(); ++g) {
      empty[static_cast<std::size_t>(state.group(g).pool)] += num_empty_slots(
          sequence, state.pool_of(g).device, g, state.is_cross(g), state.options.block_size);
    }
  }
  for (std::size_t p = 0; p < state.pools.size(); ++p) {
    const PoolState& pool = state.pools[p];
    const double num_slots =
        static_cast<double>(pool.device.num_in_use()) * state.options.block_size;
    stats.pools.push_back({.num_usable = pool.device.num_usable(),
                           .num_free = pool.device.num_free(),
                           .num_evictable = pool.device.num_evictable(),
                           .num_in_use = pool.device.num_in_use(),
                           .num_host_usable = pool.host.num_usable(),
                           .num_host_in_use = pool.host.num_in_use(),
                           .fragmentation = num_slots > 0 ? empty[p] / num_slots : 0.0});
  }
  return stats;
}

namespace {

void dump_pool(std::ostream& out, const BlockPool& blocks, const PrefixIndex& index,
               bool has_index) {
  out << blocks.num_blocks() << " blocks, " << blocks.num_free() << " free, "
      << blocks.num_evictable() << " evictable, " << blocks.num_in_use() << " in use\n";
  for (std::int64_t id = 1; id < blocks.id_limit(); ++id) {
    const auto block = static_cast<BlockId>(id);
    const bool is_known = has_index && index.contains(block);
    if (!blocks.is_in_use(block) && !is_known) continue;
    out << "    block " << id << ": " << blocks.num_refs(block) << " refs";
    if (blocks.is_in_use(block)) {
      out << ", " << blocks.num_pins(block) << " pins, note " << blocks.note(block);
    }
    if (is_known) {
      const PrefixIndex::Key key = index.key(block);
      out << (index.is_tail(block) ? ", tail of " : ", key ")
          << to_string(index.is_tail(block) ? key.parent : key.digest).substr(0, 16) << " group "
          << key.group;
    }
    out << "\n";
  }
  out << "    eviction order:";
  for (BlockId id = blocks.oldest_evictable(); id != kNullBlock; id = blocks.next_evictable(id)) {
    out << " " << id;
  }
  out << "\n";
}

}  // namespace

std::string BlockManager::dump() const {
  const State& state = *state_;
  std::ostringstream out;
  const bool has_index = state.options.prefix_cache;
  for (std::size_t p = 0; p < state.pools.size(); ++p) {
    out << "pool " << p << ": ";
    dump_pool(out, state.pools[p].device, state.pools[p].index, has_index);
    out << "  host: ";
    dump_pool(out, state.pools[p].host, state.pools[p].host_index, has_index);
  }
  for (std::size_t record = 0; record < state.sequences.size(); ++record) {
    const SequenceRecord& sequence = state.sequences[record];
    if (sequence.status == SequenceRecord::Status::kFree) continue;
    out << "sequence " << to_string(state.id_of(record)) << ": " << sequence.num_tokens
        << " tokens, " << sequence.num_appended << " appended, " << sequence.num_cross_tokens
        << " cross" << (sequence.status == SequenceRecord::Status::kSwapped ? ", swapped" : "")
        << (sequence.shares ? ", shares" : "") << ", last key "
        << to_string(sequence.last_key).substr(0, 16) << ", tail";
    for (const Token token : sequence.tail) out << " " << token;
    out << "\n";
    for (int g = 0; g < state.num_groups(); ++g) {
      out << "    group " << g << " from " << sequence.table(g).window_begin << ":";
      for (const BlockId block : sequence.table(g).blocks) out << " " << block;
      out << "\n";
    }
  }
  for (const PendingCopy& copy : state.copies.all()) {
    out << "copy in group " << copy.group << ": " << (copy.src.side == Side::kHost ? "host " : "")
        << copy.src.block << " to " << (copy.dst.side == Side::kHost ? "host " : "")
        << copy.dst.block << "\n";
  }
  const BlockStats& counts = state.counters;
  out << "counts: " << counts.num_admitted << " " << counts.num_prompt_tokens << " "
      << counts.num_prompt_blocks << " " << counts.num_hit_blocks << " " << counts.num_hit_tokens
      << " " << counts.num_stored << " " << counts.num_duplicates << " " << counts.num_evictions
      << " " << counts.num_copies << " " << counts.num_swapped_out << " " << counts.num_swapped_in
      << " " << counts.num_swap_hits << " " << counts.num_rejected << ", "
      << state.copies.waiting().size() << " copies waiting\n";
  return std::move(out).str();
}

}  // namespace quire
