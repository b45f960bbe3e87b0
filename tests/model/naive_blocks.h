// SPDX-License-Identifier: Apache-2.0
// A naive block manager: what BlockManager promises, in the plainest data structures. Blocks have
// no ids of a pool here, lists are searched from end to end, contents are compared as wholes.
//
// It says how many blocks are free, which contents can be found, in which order they are evicted,
// and which tables share a block. The harness holds the real manager to all of that.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "quire/block_manager.h"

namespace quire::test {

// Identifies what K and V of a token depend on: scope, all tokens up to it, items it stands for.
using Content = std::uint64_t;

Content mix(Content a, Content b);

// An item like an image: it stands at the tokens [first, first + count).
struct NaiveItem {
  std::int64_t first = 0;
  std::int64_t count = 0;
  int id = 0;
};

struct NaivePrompt {
  std::vector<Token> tokens;
  int salt = 0;
  int adapter = 0;
  std::optional<NaiveItem> item;

  Content root() const;
  Content next(Content before, std::int64_t position, Token token) const;
  Content item_in_block(std::int64_t block, int block_size) const;  // 0: none
};

struct NaiveSequence {
  NaivePrompt prompt;
  std::vector<Token> tokens;      // committed
  std::vector<Content> contents;  // [tokens]
  std::int64_t num_appended = 0;
  std::int64_t num_cross = 0;
  Content cross = 0;  // of the encoder's tokens
  bool cross_is_stored = false;
  bool shares = false;
  bool is_swapped = false;
  std::vector<std::vector<int>> tables;  // [groups] numbers of blocks, 0: null

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()) + num_appended; }
  Content last() const { return contents.empty() ? prompt.root() : contents.back(); }
};

struct NaiveBlock {
  bool is_gone = false;  // its number may be used again
  int group = 0;
  bool on_host = false;
  bool is_beyond = false;  // the pool has been shrunk below it
  int num_entries = 0;
  int num_pins = 0;
  bool is_known = false;  // can be found
  bool is_tail = false;
  Content content = 0;  // of its last token
  Content parent = 0;   // of the last token of the block before, or the root
  Content item = 0;
  std::vector<Token> tokens;  // of a tail
  std::uint64_t serial = 0;   // when it became known
};

class NaiveBlocks {
 public:
  explicit NaiveBlocks(const BlockManagerOptions& options);

  struct Match {
    std::int64_t num_blocks = 0;
    std::int64_t num_tail_tokens = 0;
    std::vector<std::vector<int>> hits;  // [groups][num_blocks], 0 where missing
    std::vector<int> tails;              // [groups]
  };
  Match match(const NaivePrompt& prompt, const AdmitOptions& request, bool hashed) const;
  AdmitStatus status(const NaivePrompt& prompt, const AdmitOptions& request, Match& match) const;
  void admit(const NaivePrompt& prompt, const AdmitOptions& request, const Match& match,
             bool hashed, NaiveSequence& sequence);

  bool can_append(const NaiveSequence& sequence, std::int64_t num_tokens) const;
  void append(NaiveSequence& sequence, std::int64_t num_tokens);
  void commit(NaiveSequence& sequence, const std::vector<Token>& tokens);
  void rollback(NaiveSequence& sequence, std::int64_t num_tokens);
  void fork(const NaiveSequence& parent, NaiveSequence& child);
  void free(NaiveSequence& sequence);
  std::int64_t truncate(NaiveSequence& sequence, std::int64_t num_tokens);

  bool can_swap_out(const NaiveSequence& sequence) const;
  void swap_out(NaiveSequence& sequence);
  AdmitStatus swap_in_status(const NaiveSequence& sequence) const;
  void swap_in(NaiveSequence& sequence);
  void take_copies();
  void complete_copies(std::size_t num_copies);
  struct Copy {
    int src = 0;
    int dst = 0;
  };
  const std::vector<Copy>& copies() const { return copies_; }  // oldest first

  void reset(std::vector<NaiveSequence>& sequences);
  void set_size(int pool, std::int64_t num_blocks) { usable_[at(pool)] = num_blocks - 1; }
  void evict_oldest(int pool);

  const NaiveBlock& block(int number) const { return blocks_[at(number)]; }
  NaiveBlock& block(int number) { return blocks_[at(number)]; }
  const std::vector<int>& evictable(int pool) const { return evictable_[at(pool)]; }
  std::int64_t num_free(int pool) const;
  std::int64_t num_in_use(int pool, bool on_host) const;
  bool is_needed(int g, std::int64_t num_tokens, std::int64_t entry) const;

 private:
  template <class T>
  static std::size_t at(T index) {
    return static_cast<std::size_t>(index);
  }
  int num_groups() const { return static_cast<int>(options_.groups.size()); }
  const LayerGroup& group(int g) const { return options_.groups[at(g)]; }
  bool is_cross(int g) const { return group(g).alignment == Alignment::kUnaligned; }
  bool has_window(int g) const { return group(g).mask.window_left >= 0 || group(g).mask.chunk > 0; }
  std::int64_t blocks_for(std::int64_t num_tokens) const;
  std::int64_t first_needed(int g, std::int64_t num_tokens) const;
  std::int64_t num_available(int pool) const;
  bool is_evictable(int number) const;
  int find(int g, Content content, int except = 0) const;
  int find_tail(int g, const NaiveBlock& wanted, std::int64_t* num_equal) const;
  int allocate(int g);
  void release(int number);
  void release_host(int number);
  void unpin(int number);
  int new_block(int g, bool on_host);
  void publish(int number, Content content, Content parent);
  int source_of(int number) const;
  void cut(NaiveSequence& sequence, std::int64_t num_entries);
  void release_window(NaiveSequence& sequence);
  bool is_tail_shared(const NaiveSequence& sequence, int g) const;

  BlockManagerOptions options_;
  std::vector<NaiveBlock> blocks_;           // by number; 0 is the null block
  std::vector<std::vector<int>> evictable_;  // [pools], oldest first
  std::vector<std::int64_t> usable_;
  std::vector<Copy> copies_;
  std::size_t num_taken_ = 0;  // of copies_
  std::uint64_t last_serial_ = 0;
};

}  // namespace quire::test
