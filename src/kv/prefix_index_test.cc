// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

Digest digest_of(std::uint8_t first, std::uint8_t last = 0) {
  Digest digest;
  digest.bytes[0] = first;
  digest.bytes[31] = last;
  return digest;
}

PrefixIndex::Key key_of(const Digest& digest, std::int32_t group = 0) {
  PrefixIndex::Key key;
  key.digest = digest;
  key.group = group;
  return key;
}

TEST(PrefixIndex, FindsWhatWasInsertedUntilErased) {
  PrefixIndex index({.num_blocks = 8, .block_size = 2});
  EXPECT_EQ(index.find(key_of(digest_of(1))), kNullBlock);
  index.insert(3, key_of(digest_of(1)));
  index.insert(4, key_of(digest_of(1, 1)));  // only the last byte differs
  EXPECT_EQ(index.find(key_of(digest_of(1))), 3);
  EXPECT_EQ(index.find(key_of(digest_of(1, 1))), 4);
  index.erase(3);
  EXPECT_EQ(index.find(key_of(digest_of(1))), kNullBlock);
  EXPECT_EQ(index.find(key_of(digest_of(1, 1))), 4);
  index.validate();
}

TEST(PrefixIndex, GroupsDoNotMeet) {
  PrefixIndex index({.num_blocks = 8, .block_size = 2});
  index.insert(3, key_of(digest_of(1), 0));
  EXPECT_EQ(index.find(key_of(digest_of(1), 1)), kNullBlock);
  index.insert(4, key_of(digest_of(1), 1));
  EXPECT_EQ(index.find(key_of(digest_of(1), 0)), 3);
  EXPECT_FALSE(index.has_other_copy(3));
}

TEST(PrefixIndex, OfEqualContentsTheLatestIsFound) {
  PrefixIndex index({.num_blocks = 8, .block_size = 2});
  index.insert(3, key_of(digest_of(1)));
  EXPECT_FALSE(index.has_other_copy(3));
  index.insert(5, key_of(digest_of(1)));
  EXPECT_EQ(index.find(key_of(digest_of(1))), 5);
  EXPECT_TRUE(index.has_other_copy(3));
  index.resize(64);  // growing keeps the order
  EXPECT_EQ(index.find(key_of(digest_of(1))), 5);
  index.erase(5);
  EXPECT_EQ(index.find(key_of(digest_of(1))), 3);
  index.validate();
}

TEST(PrefixIndex, ComparedTokensSurviveEveryCollision) {
  PrefixIndex index({.num_blocks = 300,
                     .block_size = 2,
                     .keep_tokens = true,
                     .compare_tokens = true,
                     .digest_bits = 1});
  std::vector<std::vector<Token>> contents;
  const auto key = [&](std::size_t i) {
    PrefixIndex::Key made = key_of(Digest{});  // all digests are equal
    made.parent = digest_of(static_cast<std::uint8_t>(i % 3));
    made.extra = digest_of(static_cast<std::uint8_t>(i % 2));
    made.tokens = contents[i];
    return made;
  };
  for (int i = 0; i < 256; ++i) contents.push_back({i / 6, i});
  for (std::size_t i = 0; i < contents.size(); ++i)
    index.insert(static_cast<BlockId>(i + 1), key(i));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    EXPECT_EQ(index.find(key(i)), static_cast<BlockId>(i + 1));
    PrefixIndex::Key other = key(i);
    other.parent = digest_of(9);
    EXPECT_EQ(index.find(other), kNullBlock);
    other = key(i);
    other.extra = digest_of(9);
    EXPECT_EQ(index.find(other), kNullBlock);
  }
  index.validate();
}

TEST(PrefixIndex, FindsTheTailThatAgreesLongest) {
  PrefixIndex index({.num_blocks = 32, .block_size = 8, .keep_tokens = true});
  const auto key = [](const std::vector<Token>& tokens, std::uint8_t parent) {
    PrefixIndex::Key made;
    made.parent = digest_of(parent);
    made.tokens = tokens;
    return made;
  };
  const std::vector<Token> shorter = {1, 2};
  const std::vector<Token> longer = {1, 2, 3, 4};
  const std::vector<Token> elsewhere = {1, 2, 3, 9, 9};
  index.insert_tail(2, key(shorter, 1));
  index.insert_tail(3, key(longer, 1));
  index.insert_tail(4, key(elsewhere, 2));
  EXPECT_TRUE(index.is_tail(3));
  const std::vector<Token> prompt = {1, 2, 3, 9, 9};
  const PrefixIndex::Tail tail = index.find_tail(key(prompt, 1));
  EXPECT_EQ(tail.block, 3);
  EXPECT_EQ(tail.num_tokens, 3);
  EXPECT_EQ(index.find_tail(key(prompt, 2)).num_tokens, 5);
  EXPECT_EQ(index.find_tail(key(prompt, 3)).block, kNullBlock);
  index.validate();
}

// Short prompts with one image each: all follow the same root.
TEST(PrefixIndex, TailsThatDifferInTheirExtraKeysDoNotStandInEachOthersWay) {
  PrefixIndex index({.num_blocks = 4097, .block_size = 8, .keep_tokens = true});
  std::mt19937 random(1);
  const std::vector<Token> tokens = {1, 2, 3};
  std::vector<PrefixIndex::Key> keys(4096);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i].parent = digest_of(1);
    keys[i].tokens = tokens;
    for (std::uint8_t& byte : keys[i].extra.bytes) byte = static_cast<std::uint8_t>(random());
    index.insert_tail(static_cast<BlockId>(i + 1), keys[i]);
  }
  EXPECT_LT(index.longest_chain(), 16);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(index.find_tail(keys[i]).block, static_cast<BlockId>(i + 1));
  }
  index.validate();
}

TEST(PrefixIndex, StaysWholeUnderRandomUse) {
  PrefixIndex index({.num_blocks = 65, .block_size = 2});
  std::mt19937 random(1);
  std::vector<int> held(65, -1);
  for (int i = 0; i < 20'000; ++i) {
    const auto block = static_cast<BlockId>(1 + random() % 64);
    int& content = held[static_cast<std::size_t>(block)];
    if (content >= 0) {
      index.erase(block);
      content = -1;
    } else {
      content = static_cast<int>(random() % 16);
      index.insert(block, key_of(digest_of(static_cast<std::uint8_t>(content))));
    }
    const auto wanted = static_cast<int>(random() % 16);
    const BlockId found = index.find(key_of(digest_of(static_cast<std::uint8_t>(wanted))));
    const bool expected = std::find(held.begin(), held.end(), wanted) != held.end();
    ASSERT_EQ(found != kNullBlock, expected);
    if (expected) {
      ASSERT_EQ(held[static_cast<std::size_t>(found)], wanted);
    }
  }
  index.validate();
}

TEST(PrefixIndex, RefusesAShortDigestThatNobodyChecks) {
  EXPECT_THROW(PrefixIndex({.num_blocks = 8, .block_size = 2, .digest_bits = 64}), Error);
  EXPECT_THROW(PrefixIndex({.num_blocks = 8, .block_size = 2, .compare_tokens = true}), Error);
  PrefixIndex index({.num_blocks = 8, .block_size = 2});
  index.insert(3, key_of(digest_of(1)));
  EXPECT_THROW(index.insert(3, key_of(digest_of(2))), Error);
  EXPECT_THROW(index.erase(4), Error);
}

}  // namespace
}  // namespace quire
