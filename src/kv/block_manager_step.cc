// SPDX-License-Identifier: Apache-2.0
// A sequence from step to step: slots, tokens that have been computed, and what was rejected.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"
#include "kv/prefix_hash.h"
#include "kv/reserve_more.h"

namespace quire {

// A shared last block that is partly filled needs a copy before it is written.
std::int64_t BlockManager::State::num_new_blocks(const SequenceRecord& sequence, int g,
                                                 std::int64_t num_tokens) const {
  if (is_cross(g) || num_tokens == 0) return 0;
  const std::int64_t length = sequence.num_tokens + sequence.num_appended;
  return num_blocks_for(length + num_tokens) - num_blocks_for(length) +
         (is_tail_shared(sequence, g) ? 1 : 0);
}

bool BlockManager::State::is_tail_shared(const SequenceRecord& sequence, int g) const {
  const std::int64_t length = sequence.num_tokens + sequence.num_appended;
  if (length % options.block_size == 0 || is_broken(Mutant::kWritesSharedBlock)) return false;
  return num_table_refs(g, sequence.table(g).blocks.back()) > 1;
}

void BlockManager::State::copy_shared_tail(SequenceRecord& sequence, int g) {
  BlockId& entry = sequence.table(g).blocks.back();
  const PlacedBlock src = pin_source(g, {.block = entry});
  const PlacedBlock dst{.block = acquire(g)};
  if (is_broken(Mutant::kForgetsCopy)) {
    unpin(g, src);
  } else {
    add_copy(g, src, dst);
  }
  release(g, entry);
  entry = dst.block;
  ++counters.num_copies;
}

std::int64_t BlockManager::num_blocks_to_append(SequenceId id, std::int64_t num_tokens,
                                                int pool) const {
  const State& state = *state_;
  const SequenceRecord& sequence = state.find_resident(id, "append");
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  const std::int64_t limit = kMaxTokens - sequence.num_tokens - sequence.num_appended;
  require(num_tokens >= 0 && num_tokens <= limit, "sequence ", id, " can append between 0 and ",
          limit, " tokens, not ", num_tokens);
  state.require_pool(pool);
  std::int64_t num_blocks = 0;
  for (int g = 0; g < state.num_groups(); ++g) {
    if (state.group(g).pool == pool) num_blocks += state.num_new_blocks(sequence, g, num_tokens);
  }
  return num_blocks;
}

bool BlockManager::can_append(SequenceId id, std::int64_t num_tokens) const {
  for (std::size_t p = 0; p < state_->pools.size(); ++p) {
    const std::int64_t needed = num_blocks_to_append(id, num_tokens, static_cast<int>(p));
    if (needed > state_->pools[p].device.num_available()) return false;
  }
  return true;
}

bool BlockManager::append(SequenceId id, std::int64_t num_tokens) {
  if (!can_append(id, num_tokens)) return false;
  if (num_tokens == 0) return true;
  State& state = *state_;
  SequenceRecord& sequence = state.find(id);
  const std::int64_t length = sequence.num_tokens + sequence.num_appended;
  const std::int64_t num_more =
      state.num_blocks_for(length + num_tokens) - state.num_blocks_for(length);
  state.copies.reserve(state.options.groups.size());
  for (SequenceTable& table : sequence.tables) {
    reserve_more(table.blocks, static_cast<std::size_t>(num_more));
  }
  // From here on nothing throws.
  for (int g = 0; g < state.num_groups(); ++g) {
    if (state.is_cross(g)) continue;
    if (state.is_tail_shared(sequence, g)) state.copy_shared_tail(sequence, g);
    for (std::int64_t i = 0; i < num_more; ++i) {
      const BlockId block = state.acquire(g);
      sequence.table(g).blocks.push_back(block);
    }
  }
  sequence.num_appended += num_tokens;
  state.changed();
  return true;
}

void BlockManager::rollback(SequenceId id, std::int64_t num_tokens) {
  State& state = *state_;
  SequenceRecord& sequence = state.find_resident(id, "roll back");
  require(num_tokens >= 0 && num_tokens <= sequence.num_appended, "sequence ", id,
          " can roll back between 0 and ", sequence.num_appended, " tokens, not ", num_tokens);
  const std::int64_t length = sequence.num_tokens + sequence.num_appended - num_tokens;
  if (is_broken(Mutant::kRollbackLeaks)) {
    for (SequenceTable& table : sequence.tables) {
      table.blocks.resize(static_cast<std::size_t>(state.num_blocks_for(length)));
    }
  } else {
    state.release_from(sequence, state.num_blocks_for(length));
  }
  sequence.num_appended -= num_tokens;
  state.counters.num_rejected += num_tokens;
  state.changed();
}

// Block `entry` is full and computed: from now on others can find it, in every group.
void BlockManager::State::publish_block(SequenceRecord& sequence, std::int64_t entry,
                                        std::span<const Token> tokens) {
  PrefixIndex::Key key;
  key.parent = sequence.last_key;
  key.extra = sequence.prompt.extra_digest(entry);
  key.tokens = tokens;
  key.digest = entry < sequence.prompt.num_full_blocks()
                   ? sequence.prompt.key(entry)
                   : block_digest(key.parent, tokens, key.extra);
  for (int g = 0; g < num_groups(); ++g) {
    if (!is_cross(g)) publish(g, sequence.table(g).blocks[static_cast<std::size_t>(entry)], key);
  }
  sequence.last_key = key.digest;
}

void BlockManager::State::commit_tokens(SequenceRecord& sequence, std::span<const Token> tokens) {
  if (sequence.shares) {
    const auto size = static_cast<std::size_t>(options.block_size);
    std::int64_t entry = sequence.num_tokens / options.block_size;
    std::span<const Token> rest = tokens;
    while (sequence.tail.size() + rest.size() >= size) {
      if (sequence.tail.empty()) {
        publish_block(sequence, entry, rest.first(size));
        rest = rest.subspan(size);
      } else {
        const std::size_t num_missing = size - sequence.tail.size();
        sequence.tail.insert(sequence.tail.end(), rest.begin(),
                             rest.begin() + static_cast<std::ptrdiff_t>(num_missing));
        publish_block(sequence, entry, sequence.tail);
        sequence.tail.clear();
        rest = rest.subspan(num_missing);
      }
      ++entry;
    }
    sequence.tail.insert(sequence.tail.end(), rest.begin(), rest.end());
  }
  sequence.num_tokens += static_cast<std::int64_t>(tokens.size());
  sequence.num_appended -= static_cast<std::int64_t>(tokens.size());
  if (!tokens.empty()) sequence.cross_is_stored = true;
  release_window(sequence);
}

void BlockManager::commit(SequenceId id, std::span<const Token> tokens) {
  State& state = *state_;
  SequenceRecord& sequence = state.find_resident(id, "commit");
  require(tokens.size() <= static_cast<std::size_t>(sequence.num_appended), "sequence ", id,
          " has appended ", sequence.num_appended, " tokens, cannot commit ", tokens.size());
  require(state.copies.waiting().empty(), "sequence ", id, " cannot commit while ",
          state.copies.waiting().size(), " copies wait to be taken");
  const std::span<const Token> prompt = sequence.prompt.tokens();
  const auto first = static_cast<std::size_t>(sequence.num_tokens);
  for (std::size_t i = 0; i < tokens.size() && first + i < prompt.size(); ++i) {
    require(tokens[i] == prompt[first + i], "sequence ", id, ", token ", first + i,
            ": the prompt has ", prompt[first + i], ", committed is ", tokens[i]);
  }
  state.commit_tokens(sequence, tokens);
  state.changed();
}

void BlockManager::commit_prompt(SequenceId id, std::int64_t num_tokens) {
  const SequenceRecord& sequence = state_->find_resident(id, "commit");
  const std::span<const Token> prompt = sequence.prompt.tokens();
  const std::int64_t left =
      std::max<std::int64_t>(sequence.prompt.num_tokens() - sequence.num_tokens, 0);
  require(num_tokens >= 0 && num_tokens <= left, "sequence ", id, " has ", left,
          " tokens of its prompt left to commit, not ", num_tokens);
  commit(id, num_tokens == 0 ? std::span<const Token>()
                             : prompt.subspan(static_cast<std::size_t>(sequence.num_tokens),
                                              static_cast<std::size_t>(num_tokens)));
}

StepSizes BlockManager::step_sizes(int group, std::span<const SequenceId> ids) const {
  const State& state = *state_;
  state.require_group(group);
  StepSizes sizes;
  for (const SequenceId id : ids) {
    const SequenceRecord& sequence = state.find_resident(id, "step");
    const auto num_blocks = static_cast<std::int64_t>(sequence.table(group).blocks.size());
    sizes.num_blocks += num_blocks;
    sizes.max_blocks = std::max(sizes.max_blocks, num_blocks);
    sizes.num_slots += state.slots_of(sequence, group).count;
  }
  return sizes;
}

BlockManager::State::SlotRange BlockManager::State::slots_of(const SequenceRecord& sequence,
                                                             int g) const {
  if (!is_cross(g)) return {.first = sequence.num_tokens, .count = sequence.num_appended};
  return {.first = 0, .count = sequence.cross_is_stored ? 0 : sequence.num_cross_tokens};
}

// Everything that could be wrong with the arrays, before the first of them is written.
void BlockManager::State::require_arrays(int group, std::span<const SequenceId> ids,
                                         const StepArrays& arrays, const StepSizes& sizes) const {
  const auto require_room = [](const char* name, std::size_t size, std::int64_t needed) {
    require(static_cast<std::int64_t>(size) >= needed, name, ": needs ", needed, " entries, has ",
            size);
  };
  const auto num_sequences = static_cast<std::int64_t>(ids.size());
  const bool is_padded = arrays.row_stride > 0;
  require(is_padded != !arrays.begins.empty(),
          "exactly one of row_stride and begins must be given");
  require_room("kv_lens", arrays.kv_lens.size(), num_sequences);
  require_room("slots", arrays.slots.size(), sizes.num_slots);
  if (!arrays.query_begins.empty()) {
    require_room("query_begins", arrays.query_begins.size(), num_sequences + 1);
  }
  if (is_padded) {
    require(arrays.row_stride >= sizes.max_blocks, "row_stride must be at least ", sizes.max_blocks,
            " in group ", group, ", is ", arrays.row_stride);
    require(num_sequences == 0 || arrays.row_stride <= std::numeric_limits<std::int32_t>::max(),
            "row_stride is too large: ", arrays.row_stride);
    require_room("indices", arrays.indices.size(), num_sequences * arrays.row_stride);
  } else {
    require_room("begins", arrays.begins.size(), num_sequences + 1);
    require_room("indices", arrays.indices.size(), sizes.num_blocks);
    require(sizes.num_blocks <= std::numeric_limits<std::int32_t>::max(),
            "the tables have too many entries: ", sizes.num_blocks);
  }
  ++last_visit;
  std::int64_t num_queries = 0;
  for (const SequenceId id : ids) {
    const SequenceRecord& sequence = find(id);
    num_queries += sequence.num_appended;
    require(num_queries <= std::numeric_limits<std::int32_t>::max(), "sequence ", id,
            " brings the batch to more than 2^31 - 1 tokens: ", num_queries);
    require(sequence.visit != last_visit, "sequence ", id, " is in the batch twice");
    sequence.visit = last_visit;
  }
}

void BlockManager::write_step(int group, std::span<const SequenceId> ids,
                              const StepArrays& arrays) const {
  const State& state = *state_;
  state.require_arrays(group, ids, arrays, step_sizes(group, ids));
  const bool is_padded = arrays.row_stride > 0;
  const std::int64_t block_size = state.options.block_size;
  std::int32_t num_queries = 0;
  std::size_t next = 0;
  auto slot = arrays.slots.begin();
  for (std::size_t s = 0; s < ids.size(); ++s) {
    const SequenceRecord& sequence = state.find(ids[s]);
    const std::vector<BlockId>& blocks = sequence.table(group).blocks;
    const std::int64_t length = state.is_cross(group) ? sequence.num_cross_tokens
                                                      : sequence.num_tokens + sequence.num_appended;
    if (is_padded) next = s * static_cast<std::size_t>(arrays.row_stride);
    if (!is_padded) arrays.begins[s] = static_cast<std::int32_t>(next);
    if (!arrays.query_begins.empty()) arrays.query_begins[s] = num_queries;
    num_queries += static_cast<std::int32_t>(sequence.num_appended);
    arrays.kv_lens[s] = static_cast<std::int32_t>(length);
    std::ranges::copy(blocks, arrays.indices.begin() + static_cast<std::ptrdiff_t>(next));
    next += blocks.size();
    if (is_padded) {
      const std::size_t end = (s + 1) * static_cast<std::size_t>(arrays.row_stride);
      std::ranges::fill(arrays.indices.subspan(next, end - next), kNullBlock);
    }
    const State::SlotRange range = state.slots_of(sequence, group);
    for (std::int64_t position = range.first; position < range.first + range.count; ++position) {
      const std::int64_t block = blocks[static_cast<std::size_t>(position / block_size)];
      *slot++ = block * block_size + position % block_size;
    }
  }
  if (!is_padded) arrays.begins[ids.size()] = static_cast<std::int32_t>(next);
  if (!arrays.query_begins.empty()) arrays.query_begins[ids.size()] = num_queries;
}

}  // namespace quire
