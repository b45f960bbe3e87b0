// SPDX-License-Identifier: Apache-2.0
// Every invariant of a BlockManager, from scratch: what is wrong is named by sequence, group and
// table entry, or by block.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kv/block_manager_state.h"

namespace quire {
namespace {

template <class... Args>
void check(bool condition, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::kInternal, std::forward<Args>(args)...);
  }
}

// References as the tables and the copies show them, by side and block.
struct Expected {
  struct Counts {
    std::vector<std::int32_t> entries;
    std::vector<std::int32_t> pins;
    std::vector<std::int32_t> notes;
    std::vector<std::int32_t> groups;  // of the sequence that holds it, or -1
  };
  Counts device;
  Counts host;
};

Expected::Counts make_counts(const BlockPool& blocks) {
  const auto size = static_cast<std::size_t>(blocks.id_limit());
  return {.entries = std::vector<std::int32_t>(size),
          .pins = std::vector<std::int32_t>(size),
          .notes = std::vector<std::int32_t>(size),
          .groups = std::vector<std::int32_t>(size, -1)};
}

// One table entry against the state of its block; counts it.
void check_entry(const BlockPool& blocks, Expected::Counts& counts, SequenceId id, int g,
                 std::size_t entry, BlockId block) {
  check(block > kNullBlock && block < blocks.id_limit(), "sequence ", id, ", group ", g, ", entry ",
        entry, ": block ", block, " is not one of 1 to ", blocks.id_limit() - 1);
  check(blocks.is_in_use(block), "sequence ", id, ", group ", g, ", entry ", entry, ": block ",
        block, " is not in use");
  const auto index = static_cast<std::size_t>(block);
  check(counts.groups[index] < 0 || counts.groups[index] == g, "sequence ", id, ", group ", g,
        ", entry ", entry, ": block ", block, " also belongs to group ", counts.groups[index]);
  counts.groups[index] = g;
  ++counts.entries[index];
}

void check_references(const BlockPool& blocks, const Expected::Counts& counts, std::size_t p,
                      const char* side) {
  for (std::int64_t id = 1; id < blocks.id_limit(); ++id) {
    const auto block = static_cast<BlockId>(id);
    const auto index = static_cast<std::size_t>(id);
    const std::int32_t refs = counts.entries[index] + counts.pins[index];
    check(blocks.num_refs(block) == refs, "pool ", p, ", ", side, " block ", id, " counts ",
          blocks.num_refs(block), " references, has ", counts.entries[index], " table entries and ",
          counts.pins[index], " copies");
    if (refs == 0) continue;
    check(blocks.num_pins(block) == counts.pins[index], "pool ", p, ", ", side, " block ", id,
          " counts ", blocks.num_pins(block), " pins, has ", counts.pins[index], " copies");
    check(blocks.note(block) == counts.notes[index], "pool ", p, ", ", side, " block ", id,
          " is marked as written by waiting copy ", blocks.note(block), ", is by ",
          counts.notes[index]);
  }
}

// Unreferenced contents are the only copy, and precede the content that they follow.
void check_evictable(const PoolState& pool, std::size_t p, const BlockManagerOptions& options) {
  std::vector<std::int32_t> place(static_cast<std::size_t>(pool.device.id_limit()));
  std::int32_t next = 0;
  for (BlockId id = pool.device.oldest_evictable(); id != kNullBlock;
       id = pool.device.next_evictable(id)) {
    place[static_cast<std::size_t>(id)] = ++next;
  }
  for (std::int64_t id = 1; id < pool.device.id_limit(); ++id) {
    const auto block = static_cast<BlockId>(id);
    const bool is_known = options.prefix_cache && pool.index.contains(block);
    const bool is_evictable = pool.device.is_evictable(block);
    check(!is_evictable || is_known, "pool ", p, ", block ", id, " is evictable without content");
    check(!is_known || is_evictable || pool.device.is_in_use(block), "pool ", p, ", block ", id,
          " is free but can be found");
    if (!is_known) continue;
    const PrefixIndex::Key key = pool.index.key(block);
    const bool is_tail = pool.index.is_tail(block);
    check(!is_evictable || is_tail || !pool.index.has_other_copy(block), "pool ", p, ", block ", id,
          " is evictable but not the only copy of its content");
    const Mask& mask = options.groups[static_cast<std::size_t>(key.group)].mask;
    if (mask.window_left >= 0 || mask.chunk > 0) continue;
    const BlockId parent = pool.index.find_digest(key.parent, key.group);
    if (parent == kNullBlock) continue;  // the first of its sequence: it follows a root
    // A block that only a copy holds takes its place when the copy is done.
    const bool is_held = pool.device.num_refs(block) > 0 &&
                         pool.device.num_refs(block) > pool.device.num_pins(block);
    const bool is_before = is_evictable && place[static_cast<std::size_t>(parent)] <
                                               place[static_cast<std::size_t>(block)];
    check(!pool.device.is_evictable(parent) || !(is_held || is_before), "pool ", p, ", block ",
          parent, " would be evicted before block ", id, " that follows it");
  }
}

}  // namespace

void BlockManager::State::validate_sequence(std::size_t record) const {
  const SequenceRecord& sequence = sequences[record];
  const SequenceId id = id_of(record);
  const std::int64_t length = sequence.num_tokens + sequence.num_appended;
  check(sequence.num_tokens >= 0 && sequence.num_appended >= 0, "sequence ", id, " has ",
        sequence.num_tokens, " tokens and ", sequence.num_appended, " appended ones");
  for (int g = 0; g < num_groups(); ++g) {
    const SequenceTable& table = sequence.table(g);
    const std::int64_t expected = num_blocks_for(is_cross(g) ? sequence.num_cross_tokens : length);
    check(static_cast<std::int64_t>(table.blocks.size()) == expected, "sequence ", id, ", group ",
          g, " has ", table.blocks.size(), " entries, needs ", expected);
    for (std::int64_t i = 0; i < expected; ++i) {
      const BlockId block = table.blocks[static_cast<std::size_t>(i)];
      const bool is_hole = i >= num_sink_blocks(g) && i < table.window_begin;
      check((block == kNullBlock) == is_hole, "sequence ", id, ", group ", g, ", entry ", i,
            ": block ", block, is_hole ? " although the window has passed" : " is needed");
      if (is_cross(g)) continue;
      check(!is_hole || !is_needed(g, sequence.num_tokens, i), "sequence ", id, ", group ", g,
            ", entry ", i, " was released but can still be seen");
      validate_content(sequence, id, g, i);
    }
  }
}

// Full blocks of a sequence that shares can be found; what is still to be written cannot.
void BlockManager::State::validate_content(const SequenceRecord& sequence, SequenceId id, int g,
                                           std::int64_t entry) const {
  const BlockId block = sequence.table(g).blocks[static_cast<std::size_t>(entry)];
  if (block == kNullBlock || !options.prefix_cache) return;
  const bool is_swapped = sequence.status == SequenceRecord::Status::kSwapped;
  const PoolState& pool = pool_of(g);
  const PrefixIndex& index = is_swapped ? pool.host_index : pool.index;
  const bool is_full = (entry + 1) * options.block_size <= sequence.num_tokens;
  if (!is_full) {
    check(!index.contains(block), "sequence ", id, ", group ", g, ", entry ", entry, ": block ",
          block, " is still to be written, but can be found");
    const bool is_written =
        (entry + 1) * options.block_size > sequence.num_tokens &&
        entry * options.block_size < sequence.num_tokens + sequence.num_appended;
    check(is_swapped || sequence.num_appended == 0 || !is_written || num_table_refs(g, block) == 1,
          "sequence ", id, ", group ", g, ", entry ", entry, ": block ", block,
          " is about to be written, but shared");
    return;
  }
  if (!sequence.shares) return;
  check(index.contains(block) && index.key(block).group == g && !index.is_tail(block), "sequence ",
        id, ", group ", g, ", entry ", entry, ": block ", block, " cannot be found");
  if (entry < sequence.prompt.num_full_blocks()) {
    check(index.key(block).digest == sequence.prompt.key(entry), "sequence ", id, ", group ", g,
          ", entry ", entry, ": block ", block, " has the key of another content");
  }
}

void BlockManager::State::validate() const {
  std::vector<Expected> expected;
  for (const PoolState& pool : pools) {
    pool.device.validate();
    pool.host.validate();
    pool.index.validate();
    pool.host_index.validate();
    expected.push_back({.device = make_counts(pool.device), .host = make_counts(pool.host)});
  }
  for (std::size_t record = 0; record < sequences.size(); ++record) {
    const SequenceRecord& sequence = sequences[record];
    if (sequence.status == SequenceRecord::Status::kFree) continue;
    const bool is_swapped = sequence.status == SequenceRecord::Status::kSwapped;
    for (int g = 0; g < num_groups(); ++g) {
      Expected& counts = expected[static_cast<std::size_t>(group(g).pool)];
      const PoolState& pool = pool_of(g);
      for (std::size_t i = 0; i < sequence.table(g).blocks.size(); ++i) {
        const BlockId block = sequence.table(g).blocks[i];
        if (block == kNullBlock) continue;
        check_entry(is_swapped ? pool.host : pool.device, is_swapped ? counts.host : counts.device,
                    id_of(record), g, i, block);
      }
    }
    validate_sequence(record);
  }
  std::int32_t note = -static_cast<std::int32_t>(copies.all().size() - copies.waiting().size());
  for (const PendingCopy& copy : copies.all()) {
    Expected& counts = expected[static_cast<std::size_t>(group(copy.group).pool)];
    Expected::Counts& src = copy.src.side == Side::kHost ? counts.host : counts.device;
    Expected::Counts& dst = copy.dst.side == Side::kHost ? counts.host : counts.device;
    ++src.pins[static_cast<std::size_t>(copy.src.block)];
    ++dst.pins[static_cast<std::size_t>(copy.dst.block)];
    if (++note > 0) dst.notes[static_cast<std::size_t>(copy.dst.block)] = note;
  }
  for (std::size_t p = 0; p < pools.size(); ++p) {
    check_references(pools[p].device, expected[p].device, p, "device");
    check_references(pools[p].host, expected[p].host, p, "host");
    check_evictable(pools[p], p, options);
  }
}

void BlockManager::validate() const {
  state_->validate();
}

}  // namespace quire
