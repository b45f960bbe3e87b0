// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/mutation.h"

namespace quire {
namespace {

std::uint64_t first_word(const Digest& digest) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, digest.bytes.data(), sizeof(word));
  return word;
}

// All of them for counts that the constructor will refuse.
std::uint64_t low_bits(int count) noexcept {
  return count < 0 || count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

std::size_t PrefixIndex::num_buckets_for(std::int64_t num_blocks) noexcept {
  return std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(num_blocks, 2)));
}

PrefixIndex::PrefixIndex(const Options& options)
    : block_size_(options.block_size),
      keep_tokens_(options.keep_tokens),
      compare_tokens_(options.compare_tokens),
      digest_mask_(low_bits(options.digest_bits)) {
  require(options.num_blocks >= 1, "num_blocks must be at least 1, is ", options.num_blocks);
  require(options.block_size >= 1, "block_size must be at least 1, is ", options.block_size);
  require(options.digest_bits >= 1 && options.digest_bits <= 256,
          "digest_bits must be between 1 and 256, is ", options.digest_bits);
  require(options.compare_tokens || options.digest_bits == 256,
          "a digest of fewer than 256 bits needs the comparison of tokens, digest_bits is ",
          options.digest_bits);
  require(options.keep_tokens || !options.compare_tokens, "comparing tokens needs them kept");
  resize(options.num_blocks);
}

std::size_t PrefixIndex::bucket_of(const Digest& digest, std::int32_t group) const noexcept {
  return bucket_of_word((first_word(digest) & digest_mask_) +
                        static_cast<std::uint64_t>(group) * 2);
}

// Tails lie in buckets of the digest before them and their extra keys: prompts that differ in an
// image alone must not walk past each other's. The kinds differ in num_tokens.
std::size_t PrefixIndex::tail_bucket_of(const Digest& parent, const Digest& extra,
                                        std::int32_t group) const noexcept {
  return bucket_of_word((first_word(parent) & digest_mask_) +
                        (first_word(extra) & digest_mask_) * 3 +
                        static_cast<std::uint64_t>(group) * 2 + 1);
}

std::size_t PrefixIndex::bucket_of_word(std::uint64_t word) const noexcept {
  // Fibonacci hashing: also the few values of a tiny test digest spread over the table.
  const int shift = 64 - std::countr_zero(buckets_.size());
  return static_cast<std::size_t>((word * 0x9E3779B97F4A7C15ULL) >> shift);
}

std::size_t PrefixIndex::bucket_of(const Record& entry) const noexcept {
  const bool is_tail = entry.num_tokens < block_size_;
  return is_tail ? tail_bucket_of(entry.parent, entry.extra, entry.group)
                 : bucket_of(entry.digest, entry.group);
}

std::span<const Token> PrefixIndex::tokens_of(BlockId block) const noexcept {
  if (!keep_tokens_) return {};
  const auto first = static_cast<std::size_t>(block) * static_cast<std::size_t>(block_size_);
  return std::span(tokens_).subspan(first, static_cast<std::size_t>(record(block).num_tokens));
}

bool PrefixIndex::holds(BlockId block, const Key& key) const noexcept {
  const Record& entry = record(block);
  if (entry.group != key.group || entry.num_tokens != block_size_) return false;
  if (!compare_tokens_) return entry.digest == key.digest;
  if (((first_word(entry.digest) ^ first_word(key.digest)) & digest_mask_) != 0) return false;
  if (is_broken(Mutant::kSkipsTokenCompare)) return true;
  return entry.parent == key.parent && entry.extra == key.extra &&
         std::ranges::equal(tokens_of(block), key.tokens);
}

BlockId PrefixIndex::find(const Key& key) const noexcept {
  BlockId block = buckets_[bucket_of(key.digest, key.group)];
  while (block != kNullBlock && !holds(block, key)) block = record(block).next;
  return block;
}

BlockId PrefixIndex::find_digest(const Digest& digest, std::int32_t group) const noexcept {
  BlockId block = buckets_[bucket_of(digest, group)];
  while (block != kNullBlock) {
    const Record& entry = record(block);
    if (entry.group == group && entry.num_tokens == block_size_ && entry.digest == digest) break;
    block = entry.next;
  }
  return block;
}

PrefixIndex::Tail PrefixIndex::find_tail(const Key& key) const noexcept {
  Tail best;
  int num_seen = 0;
  BlockId block = buckets_[tail_bucket_of(key.parent, key.extra, key.group)];
  for (; block != kNullBlock && num_seen < kMaxTails; block = record(block).next) {
    const Record& entry = record(block);
    if (entry.group != key.group || entry.num_tokens >= block_size_ || entry.parent != key.parent ||
        entry.extra != key.extra) {
      continue;
    }
    ++num_seen;
    const std::span<const Token> tokens = tokens_of(block);
    const auto differs = std::ranges::mismatch(tokens, key.tokens);
    const std::int64_t num_equal = differs.in1 - tokens.begin();
    if (num_equal > best.num_tokens) best = {.block = block, .num_tokens = num_equal};
  }
  return best;
}

bool PrefixIndex::has_other_copy(BlockId block) const noexcept {
  const Key wanted = key(block);
  BlockId other = buckets_[bucket_of(record(block))];
  while (other != kNullBlock && (other == block || !holds(other, wanted))) {
    other = record(other).next;
  }
  return other != kNullBlock;
}

void PrefixIndex::link(BlockId block) noexcept {
  Record& entry = record(block);
  BlockId& first = buckets_[bucket_of(entry)];
  entry.prev = kNullBlock;
  entry.next = first;
  if (first != kNullBlock) record(first).prev = block;
  first = block;
}

void PrefixIndex::add(BlockId block, const Key& key, std::int32_t num_tokens) {
  QUIRE_CHECK(block > kNullBlock && !contains(block));
  Record& entry = record(block);
  entry.digest = key.digest;
  entry.parent = key.parent;
  entry.extra = key.extra;
  entry.group = key.group;
  entry.num_tokens = num_tokens;
  if (keep_tokens_) {
    const auto first = static_cast<std::size_t>(block) * static_cast<std::size_t>(block_size_);
    std::ranges::copy(key.tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(first));
  }
  link(block);
  ++size_;
}

void PrefixIndex::insert(BlockId block, const Key& key) {
  add(block, key, block_size_);
}

void PrefixIndex::insert_tail(BlockId block, const Key& key) {
  add(block, key, static_cast<std::int32_t>(key.tokens.size()));
}

void PrefixIndex::erase(BlockId block) {
  QUIRE_CHECK(contains(block));
  Record& entry = record(block);
  if (entry.prev != kNullBlock) {
    record(entry.prev).next = entry.next;
  } else {
    buckets_[bucket_of(entry)] = entry.next;
  }
  if (entry.next != kNullBlock) record(entry.next).prev = entry.prev;
  entry.num_tokens = 0;
  --size_;
}

PrefixIndex::Key PrefixIndex::key(BlockId block) const noexcept {
  const Record& entry = record(block);
  return {.digest = entry.digest,
          .parent = entry.parent,
          .extra = entry.extra,
          .group = entry.group,
          .tokens = tokens_of(block)};
}

void PrefixIndex::resize(std::int64_t num_blocks) {
  const auto num_records = static_cast<std::size_t>(num_blocks);
  std::vector<BlockId> buckets(num_buckets_for(num_blocks), kNullBlock);
  const std::size_t num_tokens =
      num_records * static_cast<std::size_t>(keep_tokens_ ? block_size_ : 0);
  records_.reserve(num_records);
  tokens_.reserve(num_tokens);
  // From here on nothing throws. Chains keep their order: the latest copy stays first.
  records_.resize(num_records);
  tokens_.resize(num_tokens);
  std::swap(buckets, buckets_);
  for (const BlockId first : buckets) {
    BlockId last = first;
    while (last != kNullBlock && record(last).next != kNullBlock) last = record(last).next;
    while (last != kNullBlock) {
      const BlockId before = record(last).prev;
      link(last);
      last = before;
    }
  }
}

std::int64_t PrefixIndex::longest_chain() const noexcept {
  std::int64_t longest = 0;
  for (BlockId block : buckets_) {
    std::int64_t length = 0;
    for (; block != kNullBlock; block = record(block).next) ++length;
    longest = std::max(longest, length);
  }
  return longest;
}

void PrefixIndex::validate() const {
  std::int64_t num_chained = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    BlockId prev = kNullBlock;
    for (BlockId block = buckets_[bucket]; block != kNullBlock; block = record(block).next) {
      const Record& entry = record(block);
      if (!contains(block) || entry.prev != prev || bucket_of(entry) != bucket ||
          ++num_chained > size_) {
        fail(ErrorCode::kInternal, "the prefix index is broken at block ", block);
      }
      prev = block;
    }
  }
  std::int64_t num_contained = 0;
  for (std::size_t block = 1; block < records_.size(); ++block) {
    num_contained += records_[block].num_tokens != 0;
  }
  if (num_chained != size_ || num_contained != size_) {
    fail(ErrorCode::kInternal, "the prefix index counts ", size_, " blocks, chains ", num_chained,
         " and records ", num_contained);
  }
}

}  // namespace quire
