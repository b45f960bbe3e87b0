// SPDX-License-Identifier: Apache-2.0
// Which block holds which content: full blocks by their digest, partly filled ones (tails) by the
// block that they follow.
//
// One record per block of a pool, chained into hash buckets by index; find, insert and erase are
// O(1) and allocate no memory, only construction and resize do. Several blocks may hold equal
// content (they were computed side by side); find returns the one inserted last.
//
// Digests decide, unless tokens are compared on a hit: then the first digest_bits of the digest
// only choose candidates, and the tokens, the digest of the block before and the extra keys decide.
// Tests set digest_bits to 4, so that everything collides. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/kv_ids.h"
#include "quire/prompt.h"

namespace quire {

class PrefixIndex {
 public:
  struct Options {
    std::int64_t num_blocks = 1;
    int block_size = 1;
    bool keep_tokens = false;     // needed to compare tokens and for tails
    bool compare_tokens = false;  // REQUIRES: keep_tokens
    int digest_bits = 256;        // less than 256 REQUIRES: compare_tokens
  };

  // What a block holds. `tokens` may be empty where no tokens are kept.
  struct Key {
    Digest digest{};  // unused for tails
    Digest parent{};
    Digest extra{};
    std::int32_t group = 0;
    std::span<const Token> tokens{};  // [block_size], fewer for tails
  };

  struct Tail {
    BlockId block = kNullBlock;
    std::int64_t num_tokens = 0;  // equal at the beginning
  };

  // A search looks at this many of the tails that follow one block, the latest first.
  static constexpr int kMaxTails = 8;

  explicit PrefixIndex(const Options& options);

  // A block with this content, or the null block.
  BlockId find(const Key& key) const noexcept;
  // The block of this digest, without comparing tokens: to walk from a block to the one before.
  BlockId find_digest(const Digest& digest, std::int32_t group) const noexcept;
  // The tail after key.parent that begins like key.tokens for longest; the latest of equals.
  Tail find_tail(const Key& key) const noexcept;
  // True if another block holds the same content. REQUIRES: contains(block), not a tail.
  bool has_other_copy(BlockId block) const noexcept;

  // REQUIRES: !contains(block), block within the pool; else Error(kInternal), as for erase.
  void insert(BlockId block, const Key& key);
  void insert_tail(BlockId block, const Key& key);  // REQUIRES: tokens are kept
  // REQUIRES: contains(block).
  void erase(BlockId block);

  bool contains(BlockId block) const noexcept { return record(block).num_tokens != 0; }
  bool is_tail(BlockId block) const noexcept {
    return contains(block) && record(block).num_tokens < block_size_;
  }
  // What was inserted; tokens are empty where none are kept. REQUIRES: contains(block).
  Key key(BlockId block) const noexcept;

  // Room for the ids below num_blocks. Strong guarantee. REQUIRES: none of those above is
  // contained.
  void resize(std::int64_t num_blocks);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t longest_chain() const noexcept;  // blocks in one bucket
  // Throws Error(kInternal) naming the block whose record or chain is broken.
  void validate() const;

 private:
  struct Record {
    Digest digest;
    Digest parent{};
    Digest extra{};
    std::int32_t group = 0;
    std::int32_t num_tokens = 0;  // 0: not contained
    BlockId prev = kNullBlock;    // in the chain of its bucket; the null block ends it
    BlockId next = kNullBlock;
  };

  const Record& record(BlockId block) const noexcept {
    return records_[static_cast<std::size_t>(block)];
  }
  Record& record(BlockId block) noexcept { return records_[static_cast<std::size_t>(block)]; }
  std::span<const Token> tokens_of(BlockId block) const noexcept;
  bool holds(BlockId block, const Key& key) const noexcept;
  std::size_t bucket_of(const Digest& digest, std::int32_t group) const noexcept;
  std::size_t tail_bucket_of(const Digest& parent, const Digest& extra,
                             std::int32_t group) const noexcept;
  std::size_t bucket_of_word(std::uint64_t word) const noexcept;
  std::size_t bucket_of(const Record& entry) const noexcept;
  void link(BlockId block) noexcept;
  void add(BlockId block, const Key& key, std::int32_t num_tokens);
  static std::size_t num_buckets_for(std::int64_t num_blocks) noexcept;

  int block_size_;
  bool keep_tokens_;
  bool compare_tokens_;
  std::uint64_t digest_mask_;  // of the first 8 bytes
  std::int64_t size_ = 0;
  std::vector<Record> records_;   // [num_blocks]
  std::vector<BlockId> buckets_;  // [power of two] first of the chain
  std::vector<Token> tokens_;     // [num_blocks, block_size], or empty
};

}  // namespace quire
