// SPDX-License-Identifier: Apache-2.0
// What a BlockManager holds, and the few steps that all its calls are made of. The calls themselves
// are in block_manager*.cc; each first checks and reserves, then changes without throwing.
//
// Order of releases: a sequence gives back its blocks from its end, so that a block enters the
// eviction list before the one that it follows. Whoever holds a block holds those before it (in
// groups without a window), so this order holds for shared beginnings and forks too. A block that
// only a copy has kept alive is queued just before the one it follows, if that has got there first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/copy_queue.h"
#include "kv/prefix_index.h"
#include "quire/block_manager.h"

namespace quire {

// For messages, which are built only when something is wrong; as to_string.
std::ostream& operator<<(std::ostream& out, SequenceId id);

// One group's blocks of one sequence.
struct SequenceTable {
  std::vector<BlockId> blocks;
  // Entries from the sink blocks to here are null: the window has passed them.
  std::int64_t window_begin = 0;
};

struct SequenceRecord {
  enum class Status : std::uint8_t { kFree, kResident, kSwapped };

  std::uint32_t generation = 1;
  Status status = Status::kFree;
  bool shares = false;           // its full blocks become findable
  bool cross_is_stored = false;  // the encoder's K and V are in their blocks
  Prompt prompt;
  std::vector<SequenceTable> tables;  // [num_groups]
  std::vector<Token> tail;            // tokens of the partly filled last block, if it shares
  std::int64_t num_tokens = 0;        // committed
  std::int64_t num_appended = 0;      // not committed yet
  std::int64_t num_cross_tokens = 0;
  Digest last_key;                  // of its last full block, or the root
  mutable std::uint64_t visit = 0;  // finds a sequence that a batch names twice

  SequenceTable& table(int g) { return tables[static_cast<std::size_t>(g)]; }
  const SequenceTable& table(int g) const { return tables[static_cast<std::size_t>(g)]; }
};

// One space of device ids and one of host ids.
struct PoolState {
  BlockPool device;
  PrefixIndex index;  // of device
  BlockPool host;
  PrefixIndex host_index;  // remembers the keys of blocks that are swapped out
  std::int64_t watermark = 0;
};

// What a prompt finds, and what it needs.
struct AdmissionPlan {
  std::int64_t num_blocks = 0;       // full blocks found
  std::int64_t num_tail_tokens = 0;  // found beyond them, in partly filled blocks
  std::int64_t num_cached(int block_size) const noexcept {
    return num_blocks * block_size + num_tail_tokens;
  }
};

struct BlockManager::State {
  explicit State(const BlockManagerOptions& options_);

  BlockManagerOptions options;
  std::vector<PoolState> pools;
  CopyQueue copies;
  std::vector<SequenceRecord> sequences;
  std::vector<std::uint32_t> free_records;  // capacity for all of sequences
  std::uint64_t owner = 0;                  // tells the ids of this manager from others'
  BlockStats counters;                      // counts only
  std::int64_t num_changes = 0;
  // Scratch of one call: the blocks that each group found, and lengths of runs of them.
  mutable std::vector<std::vector<BlockId>> found;  // [num_groups]
  mutable std::vector<BlockId> found_tails;         // [num_groups]
  mutable std::vector<std::int32_t> runs;
  mutable std::uint64_t last_visit = 0;

  BlockId found_block(int g, std::int64_t i) const {
    return found[static_cast<std::size_t>(g)][static_cast<std::size_t>(i)];
  }
  int num_groups() const noexcept { return static_cast<int>(options.groups.size()); }
  const LayerGroup& group(int g) const { return options.groups[static_cast<std::size_t>(g)]; }
  PoolState& pool_of(int g) { return pools[static_cast<std::size_t>(group(g).pool)]; }
  const PoolState& pool_of(int g) const { return pools[static_cast<std::size_t>(group(g).pool)]; }
  bool is_cross(int g) const { return group(g).alignment == Alignment::kUnaligned; }
  bool has_window(int g) const { return group(g).mask.window_left >= 0 || group(g).mask.chunk > 0; }

  std::int64_t num_blocks_for(std::int64_t num_tokens) const noexcept {
    return (num_tokens + options.block_size - 1) / options.block_size;
  }
  std::int64_t num_sink_blocks(int g) const { return num_blocks_for(group(g).num_sink_tokens); }
  // Keys before its own that a query sees in a windowed group.
  std::int64_t window_tokens(int g) const;
  // The first block that a query from position num_tokens on may see, sinks aside.
  std::int64_t first_needed_block(int g, std::int64_t num_tokens) const;
  // True if a sequence of this length needs table entry `entry` of an aligned group.
  bool is_needed(int g, std::int64_t num_tokens, std::int64_t entry) const {
    return entry < num_sink_blocks(g) || entry >= first_needed_block(g, num_tokens);
  }

  // Sequences. find throws naming the id; the resident form also if it is swapped out.
  SequenceRecord& find(SequenceId id);
  const SequenceRecord& find(SequenceId id) const;
  SequenceRecord& find_resident(SequenceId id, const char* what);
  const SequenceRecord& find_resident(SequenceId id, const char* what) const;
  const SequenceRecord& find_swapped(SequenceId id, std::int64_t num_tokens) const;
  SequenceId id_of(std::size_t record) const noexcept;
  void require_group(int g) const;
  void require_pool(int pool) const;
  void add_records(std::size_t count);
  std::size_t make_record();  // a free one, with num_groups tables; strong guarantee
  void free_record(SequenceRecord& sequence) noexcept;

  // Blocks. None of these throws: the callers have counted and reserved before.
  BlockId acquire(int g);              // REQUIRES: the pool has one available
  void release(int g, BlockId block);  // a table entry less
  void release_host(int g, BlockId block);
  void release_last_entry(int g, SequenceRecord& sequence);
  void release_from(SequenceRecord& sequence, std::int64_t num_entries);  // aligned, from the end
  void release_window(SequenceRecord& sequence);
  void forget(PoolState& pool, BlockId block);  // its content cannot be found any more
  void publish(int g, BlockId block, PrefixIndex::Key key);
  void emit(KvEvent::Kind kind, const PrefixIndex::Key& key) const;
  std::int64_t num_table_refs(int g, BlockId block) const;

  // Copies. The source is pinned before anything may be evicted for the target.
  PlacedBlock pin_source(int g, PlacedBlock src);
  void add_copy(int g, PlacedBlock src, PlacedBlock dst);  // REQUIRES: src is pinned
  void unpin(int g, PlacedBlock placed);

  // Admission.
  AdmissionPlan find_prefix(const Prompt& prompt, const AdmitOptions& request) const;
  std::int64_t find_full_prefix(const Prompt& prompt, std::int64_t max_blocks) const;
  std::int64_t fit_windows(std::int64_t num_blocks) const;
  std::int64_t find_tails(const Prompt& prompt, std::int64_t num_blocks) const;
  struct Need {
    std::int64_t now = 0;    // of the blocks that are available
    std::int64_t alone = 0;  // if there were no other sequence
  };
  Need need_of(int g, std::int64_t num_tokens, const AdmitOptions& request,
               const AdmissionPlan& plan) const;
  Need need_of_pool(std::size_t p, std::int64_t num_tokens, const AdmitOptions& request,
                    const AdmissionPlan& plan) const;
  AdmitStatus admit_status(const Prompt& prompt, const AdmitOptions& request,
                           const AdmissionPlan& plan) const;
  AdmitStatus plan_admission(const Prompt& prompt, const AdmitOptions& request,
                             AdmissionPlan& plan) const;
  void require_request(const Prompt& prompt, const AdmitOptions& request) const;
  void take_found(SequenceRecord& sequence, const AdmissionPlan& plan);

  // Steps.
  std::int64_t num_new_blocks(const SequenceRecord& sequence, int g, std::int64_t num_tokens) const;
  bool is_tail_shared(const SequenceRecord& sequence, int g) const;
  void copy_shared_tail(SequenceRecord& sequence, int g);
  void commit_tokens(SequenceRecord& sequence, std::span<const Token> tokens);
  void publish_block(SequenceRecord& sequence, std::int64_t entry, std::span<const Token> tokens);
  void keep_tail(SequenceRecord& sequence);
  // Positions whose K and V the next step stores.
  struct SlotRange {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  SlotRange slots_of(const SequenceRecord& sequence, int g) const;
  void require_arrays(int group, std::span<const SequenceId> ids, const StepArrays& arrays,
                      const StepSizes& sizes) const;

  // Cutting and swapping.
  std::int64_t num_keepable(const SequenceRecord& sequence, std::int64_t num_tokens) const;
  bool find_last_key(const SequenceRecord& sequence, std::int64_t num_full, Digest& key) const;
  std::int64_t num_held(const SequenceRecord& sequence, std::size_t p) const;
  void move_to_host(int g, BlockId& entry);
  std::int64_t num_to_swap_in(const SequenceRecord& sequence, std::size_t p) const;
  std::int64_t num_grown(const SequenceRecord& sequence, std::int64_t num_tokens,
                         std::size_t p) const;
  AdmitStatus swap_in_status(const SequenceRecord& sequence, std::int64_t num_tokens) const;
  void move_to_device(const SequenceRecord& sequence, int g, BlockId& entry);

  void validate() const;
  void validate_sequence(std::size_t record) const;
  void validate_content(const SequenceRecord& sequence, SequenceId id, int g,
                        std::int64_t entry) const;
  void changed();  // debug builds: validate now and then
};

}  // namespace quire
