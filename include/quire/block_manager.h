// SPDX-License-Identifier: Apache-2.0
// Which sequence holds which blocks: the memory side of paged attention.
//
//   auto admission = manager.admit(prompt);                   // shares cached blocks
//   manager.append(id, num_tokens);                           // slots for the step
//   const CopyLists copies = manager.take_copies();           // run these before the step
//   manager.write_step(group, ids, arrays);                   // tables and slots of the step
//   ... append and attend ...; manager.complete_copies(copies.ticket);
//   manager.commit(id, tokens);                               // computed: from now on shareable
//
// Invariants, all checked by validate(): a block is free, in use or evictable; its references are
// its table entries and the copies under way; a block that is shared, or full and findable, is
// never written; tables only grow at their end or are cut there, and hold the null block where a
// window has passed; in groups without a window a content is never given up before those that
// follow it. Blocks with equal content, computed side by side, stay apart while in use (tables are
// append-only); of those without references one is kept.
//
// Expected outcomes are values. Misuse throws Error(kInvalidArgument) naming sequence, group,
// value; memory may run out (std::bad_alloc). A call that throws, or returns false or nothing, has
// changed nothing. Once tables have grown to their size no call but resize and reserve allocates.
// Work on blocks runs in the order of the calls (one stream). Not thread-safe, const calls
// included.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/block_stats.h"
#include "quire/export.h"
#include "quire/kv_events.h"
#include "quire/kv_ids.h"
#include "quire/kv_step.h"
#include "quire/prompt.h"

namespace quire {

// Layers with one table per sequence: those of one AttentionSpec.
struct LayerGroup {
  int pool = 0;  // groups of one pool draw on the same block ids: their blocks share memory
  // Unaligned: cross-attention; the table holds the encoder's tokens and never grows.
  Alignment alignment = Alignment::kAligned;
  Mask mask{};  // window_left and chunk release the blocks that they have passed
  std::int64_t num_sink_tokens = 0;  // the first tokens stay although the window has passed
};

struct BlockPoolOptions {
  std::int64_t num_blocks = 0;        // of the KvCache, the null block included
  std::int64_t num_host_blocks = 0;   // for swapping, the null block included; 0: none
  std::int64_t watermark_blocks = 0;  // admission leaves this many for sequences that are running
};

struct BlockManagerOptions {
  int block_size = 16;  // tokens, in all groups
  std::vector<BlockPoolOptions> pools{};
  std::vector<LayerGroup> groups{};
  bool prefix_cache = true;
  bool share_tails = false;     // partly filled last blocks are found too, and copied on a hit
  bool compare_tokens = false;  // on every hit, not trusting SHA-256; costs 4 bytes per token
  int digest_bits = 256;        // fewer only to test collisions, with compare_tokens
  KvEventSink* events = nullptr;
  int validate_interval = 256;  // debug builds validate() after this many changes; 0: never
};

enum class AdmitStatus : std::uint8_t {
  kNow,
  kLater,  // when other sequences have given back blocks
  kNever,  // not even alone
};

struct AdmitOptions {
  std::int64_t num_lookahead = 0;     // tokens beyond the prompt that should have room
  std::int64_t max_chunk = 0;         // most tokens per append, what windowed groups need; 0: any
  std::int64_t num_cross_tokens = 0;  // of the encoder; such a sequence does not share
};

struct Admission {
  SequenceId id{};
  std::int64_t num_cached_tokens = 0;  // already there: begin to compute here
};

class QUIRE_API BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);
  ~BlockManager();
  BlockManager(BlockManager&&) noexcept;
  BlockManager& operator=(BlockManager&&) noexcept;

  // Tokens that admit would find: the longest cached beginning of whole blocks (and a tail), less
  // than the prompt, since at least one token must be computed.
  std::int64_t num_cached_tokens(const Prompt& prompt) const;
  // Whether the whole prompt fits above the watermark, hits counted. kNow: admit and then append in
  // chunks of max_chunk succeed if nobody else allocates.
  AdmitStatus can_admit(const Prompt& prompt, const AdmitOptions& options = {}) const;
  // A sequence that holds the cached blocks and nothing else; nothing unless can_admit is kNow.
  [[nodiscard]] std::optional<Admission> admit(const Prompt& prompt,
                                               const AdmitOptions& options = {});
  // Blocks of a pool that admit and then append of the whole prompt and look-ahead would take, the
  // watermark aside. With num_available_blocks: how many others must give back.
  std::int64_t num_blocks_to_admit(const Prompt& prompt, const AdmitOptions& options,
                                   int pool) const;

  // Slots for the next num_tokens, look-ahead included; false if blocks are missing. The watermark
  // does not count. can_append tells what append will say.
  bool can_append(SequenceId id, std::int64_t num_tokens) const;
  [[nodiscard]] bool append(SequenceId id, std::int64_t num_tokens);
  // Blocks of a pool that append would take, for a scheduler that must find them.
  std::int64_t num_blocks_to_append(SequenceId id, std::int64_t num_tokens, int pool) const;
  // The first of the appended slots now hold K and V of `tokens`. Those of the prompt must equal
  // it; the second form takes them from there. REQUIRES: no copies wait to be taken.
  void commit(SequenceId id, std::span<const Token> tokens);
  void commit_prompt(SequenceId id, std::int64_t num_tokens);
  // Gives up the last num_tokens appended and not committed ones.
  void rollback(SequenceId id, std::int64_t num_tokens);

  // A second sequence with the same tokens. Blocks are shared; the first to write a shared block
  // gets a copy. REQUIRES: nothing appended is uncommitted.
  SequenceId fork(SequenceId id);
  void free(SequenceId id);
  // Cuts a sequence to at most num_tokens and returns what is left: less where that would lie
  // inside a full or shared block, and 0 if a window has passed keys that would be needed.
  std::int64_t truncate(SequenceId id, std::int64_t num_tokens);

  // To the host and back. Content, order and keys stay; blocks whose content is still on the device
  // are not copied back. REQUIRES: nothing appended is uncommitted.
  bool can_swap_out(SequenceId id) const;
  [[nodiscard]] bool swap_out(SequenceId id);
  // kNow: with room for so many tokens to be appended then, above the watermark.
  AdmitStatus can_swap_in(SequenceId id, std::int64_t num_tokens = 0) const;
  [[nodiscard]] bool swap_in(SequenceId id);
  std::int64_t num_blocks_to_swap_in(SequenceId id, std::int64_t num_tokens, int pool) const;

  // The copies since the last call, to be run before the step. Their blocks stay untouched until
  // complete_copies(ticket), which covers all earlier tickets too.
  CopyLists take_copies();
  void complete_copies(std::uint64_t ticket);

  StepSizes step_sizes(int group, std::span<const SequenceId> ids) const;
  // Lengths, tables and slots of the appended tokens of these sequences.
  void write_step(int group, std::span<const SequenceId> ids, const StepArrays& arrays) const;

  std::int64_t num_available_blocks(int pool) const;  // free or evictable

  std::int64_t num_tokens(SequenceId id) const;    // committed
  std::int64_t num_appended(SequenceId id) const;  // and not committed
  bool is_swapped(SequenceId id) const;
  std::span<const BlockId> block_table(SequenceId id, int group) const;  // host ids if swapped

  // Nothing computed so far is ever found again; sequences alive go on but leave nothing behind.
  void reset_prefix_cache();
  // Shrinking waits for blocks in use (false until then) and forgets unreferenced contents.
  bool resize(int pool, std::int64_t num_blocks);
  // Memory for so many sequences of so many tokens, so that calls need not allocate.
  void reserve(std::int64_t num_sequences, std::int64_t num_tokens_each);

  const BlockManagerOptions& options() const noexcept;
  BlockStats stats() const;
  // Throws Error(kInternal) naming sequence, group and table entry, or block, that is wrong.
  void validate() const;
  std::string dump() const;  // the whole state, for people and for comparison

 private:
  friend struct BlockManagerPeek;  // tests
  friend class KvCanary;
  struct State;
  std::unique_ptr<State> state_;
};

QUIRE_API std::string to_string(SequenceId id);  // "12.3": record and generation

}  // namespace quire
