// SPDX-License-Identifier: Apache-2.0
// Sequences that become two, end, or are cut short.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"
#include "kv/reserve_more.h"

namespace quire {

SequenceId BlockManager::fork(SequenceId id) {
  State& state = *state_;
  const SequenceRecord& checked = state.find_resident(id, "fork");
  require(checked.num_appended == 0, "sequence ", id, " cannot fork with ", checked.num_appended,
          " tokens appended and not committed");
  const auto parent_record = static_cast<std::size_t>(&checked - state.sequences.data());
  const std::size_t record = state.make_record();
  const SequenceRecord& parent = state.sequences[parent_record];
  SequenceRecord& child = state.sequences[record];
  for (int g = 0; g < state.num_groups(); ++g) {
    reserve_more(child.table(g).blocks, parent.table(g).blocks.size());
  }
  // From here on nothing throws.
  state.free_records.pop_back();
  child.status = SequenceRecord::Status::kResident;
  child.shares = parent.shares;
  child.cross_is_stored = parent.cross_is_stored;
  child.prompt = parent.prompt;
  child.tail.assign(parent.tail.begin(), parent.tail.end());
  child.num_tokens = parent.num_tokens;
  child.num_cross_tokens = parent.num_cross_tokens;
  child.last_key = parent.last_key;
  for (int g = 0; g < state.num_groups(); ++g) {
    child.table(g).window_begin = parent.table(g).window_begin;
    for (const BlockId& block : parent.table(g).blocks) {
      const bool is_last = &block == &parent.table(g).blocks.back();
      const bool is_counted =
          block != kNullBlock && !(is_last && is_broken(Mutant::kForkKeepsCount));
      if (is_counted) state.pool_of(g).device.add_ref(block);
      child.table(g).blocks.push_back(block);
    }
  }
  state.changed();
  return state.id_of(record);
}

// The last, partly filled block of a sequence that ends stays findable by its tokens, if nobody
// else holds it and the tails that are known do not begin with all of them already.
void BlockManager::State::keep_tail(SequenceRecord& sequence) {
  const bool is_kept = options.share_tails && sequence.shares && !sequence.tail.empty();
  if (!is_kept) return;
  const std::int64_t entry = sequence.num_tokens / options.block_size;
  release_from(sequence, entry + 1);
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    PoolState& pool = pool_of(g);
    const BlockId block = sequence.table(g).blocks.back();
    const PrefixIndex::Key key{.digest = {},
                               .parent = sequence.last_key,
                               .extra = sequence.prompt.extra_digest(entry),
                               .group = g,
                               .tokens = sequence.tail};
    const bool is_known =
        pool.index.find_tail(key).num_tokens == static_cast<std::int64_t>(sequence.tail.size());
    if (pool.device.num_refs(block) > 1 || is_known) {
      release(g, block);
    } else {
      pool.index.insert_tail(block, key);
      pool.device.release_to_evictable(block);
    }
    sequence.table(g).blocks.pop_back();
  }
  sequence.num_tokens = entry * options.block_size;
  sequence.num_appended = 0;
}

void BlockManager::free(SequenceId id) {
  State& state = *state_;
  SequenceRecord& sequence = state.find(id);
  const bool is_swapped = sequence.status == SequenceRecord::Status::kSwapped;
  if (is_swapped) {
    for (int g = 0; g < state.num_groups(); ++g) {
      for (const BlockId block : sequence.table(g).blocks) {
        if (block != kNullBlock) state.release_host(g, block);
      }
    }
  } else {
    if (is_broken(Mutant::kFreesFrontToBack)) {
      for (int g = 0; g < state.num_groups(); ++g) std::ranges::reverse(sequence.table(g).blocks);
    } else {
      state.keep_tail(sequence);
    }
    state.release_from(sequence, 0);
    for (int g = 0; g < state.num_groups(); ++g) {
      if (!state.is_cross(g)) continue;
      for (const BlockId block : sequence.table(g).blocks) state.release(g, block);
    }
  }
  state.free_record(sequence);
  state.changed();
}

// What remains of `num_tokens` when blocks are cut: all of them inside the last block, if nobody
// else holds it and no copy of it is under way (what those read must not be rewritten); else whole
// blocks.
std::int64_t BlockManager::State::num_keepable(const SequenceRecord& sequence,
                                               std::int64_t num_tokens) const {
  if (num_tokens >= sequence.num_tokens) return sequence.num_tokens;
  const std::int64_t last_block = sequence.num_tokens / options.block_size;
  bool is_inside_last = num_tokens / options.block_size == last_block;
  for (int g = 0; is_inside_last && g < num_groups(); ++g) {
    if (is_cross(g) || num_tokens % options.block_size == 0) continue;
    const BlockId block = sequence.table(g).blocks[static_cast<std::size_t>(last_block)];
    if (pool_of(g).device.num_refs(block) > 1) is_inside_last = false;
  }
  const std::int64_t kept =
      is_inside_last ? num_tokens : num_tokens / options.block_size * options.block_size;
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g) || num_blocks_for(kept) <= num_sink_blocks(g)) continue;
    const std::int64_t holes_end = std::min(sequence.table(g).window_begin, num_blocks_for(kept));
    if (first_needed_block(g, kept) < holes_end) return 0;
  }
  return kept;
}

// The key of the block that a shortened sequence now ends with; false if it is not known any more.
bool BlockManager::State::find_last_key(const SequenceRecord& sequence, std::int64_t num_full,
                                        Digest& key) const {
  if (num_full <= sequence.prompt.num_full_blocks()) {
    key = sequence.prompt.parent_key(num_full);
    return true;
  }
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    const BlockId block = sequence.table(g).blocks[static_cast<std::size_t>(num_full - 1)];
    if (block == kNullBlock) continue;
    key = pool_of(g).index.key(block).digest;
    return true;
  }
  return false;
}

std::int64_t BlockManager::truncate(SequenceId id, std::int64_t num_tokens) {
  State& state = *state_;
  SequenceRecord& sequence = state.find_resident(id, "be cut");
  require(num_tokens >= 0, "sequence ", id, " cannot be cut to ", num_tokens, " tokens");
  const std::int64_t kept = state.num_keepable(sequence, num_tokens);
  const std::int64_t num_full = kept / state.options.block_size;
  const bool loses_blocks = num_full < sequence.num_tokens / state.options.block_size;
  state.release_from(sequence, state.num_blocks_for(kept));
  if (sequence.shares) {
    if (loses_blocks) {
      sequence.shares = state.find_last_key(sequence, num_full, sequence.last_key);
      sequence.tail.clear();
    } else {
      sequence.tail.resize(static_cast<std::size_t>(kept % state.options.block_size));
    }
  }
  for (int g = 0; g < state.num_groups(); ++g) {
    const std::int64_t num_blocks = state.num_blocks_for(kept);
    std::int64_t& begin = sequence.table(g).window_begin;
    begin = num_blocks <= state.num_sink_blocks(g) ? 0 : std::min(begin, num_blocks);
  }
  sequence.num_tokens = kept;
  sequence.num_appended = 0;
  state.changed();
  return kept;
}

}  // namespace quire
