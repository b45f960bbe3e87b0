// SPDX-License-Identifier: Apache-2.0
#include "quire/prompt.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/prefix_hash.h"
#include "kv/token_packing.h"
#include "quire/error.h"

namespace quire {
namespace {

Digest sha256(const std::string& message) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(message.data()), message.size(),
         digest.bytes.data());
  return digest;
}

std::string little_endian(std::uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string head(char tag, std::size_t size) {
  return tag + little_endian(size, 4);
}

std::string bytes_of(const Digest& digest) {
  return std::string(digest.bytes.begin(), digest.bytes.end());
}

// The encoding as the header states it, byte by byte.
std::string block_message(const Digest& parent, const std::vector<Token>& tokens,
                          const Digest& extra) {
  Token largest = 0;
  bool is_negative = false;
  for (const Token token : tokens) {
    largest = std::max(largest, token);
    is_negative |= token < 0;
  }
  const bool fits_24 = !is_negative && largest < (1 << 24);
  const bool fits_18 = !is_negative && largest < (1 << 18) && tokens.size() >= 64;
  const int bits = fits_18 ? 18 : fits_24 ? 24 : 32;
  std::string packed((tokens.size() * static_cast<std::size_t>(bits) + 7) / 8, '\0');
  std::size_t at = 0;
  for (const Token token : tokens) {
    for (int bit = 0; bit < bits; ++bit, ++at) {
      if ((static_cast<std::uint32_t>(token) >> bit & 1) != 0) {
        packed[at / 8] = static_cast<char>(packed[at / 8] | 1 << (at % 8));
      }
    }
  }
  const std::string extra_bytes = extra == Digest{} ? "" : bytes_of(extra);
  return "B" +
         head(fits_18   ? 'u'
              : fits_24 ? 't'
                        : 'T',
              packed.size()) +
         head('E', extra_bytes.size()) + head('P', 32) + packed + extra_bytes + bytes_of(parent);
}

TEST(PrefixHash, IsSha256OfTheStatedEncoding) {
  std::mt19937 random(1);
  for (const std::size_t size :
       {1u, 2u, 3u, 15u, 16u, 17u, 63u, 64u, 67u, 255u, 256u, 257u, 258u, 260u, 512u, 1000u}) {
    for (const std::uint32_t limit : {2u, 1u << 18, 1u << 24, 1u << 25, 1u << 31}) {
      std::vector<Token> tokens;
      for (std::size_t i = 0; i < size; ++i) tokens.push_back(static_cast<Token>(random() % limit));
      const Digest parent = sha256("parent");
      const Digest extra = size % 2 == 0 ? Digest{} : sha256("extra");
      EXPECT_EQ(to_string(block_digest(parent, tokens, extra)),
                to_string(sha256(block_message(parent, tokens, extra))))
          << size << " tokens below " << limit;
    }
  }
  const std::vector<Token> negative = {1, -1, 2};
  EXPECT_EQ(block_digest({}, negative, {}), sha256(block_message({}, negative, {})));
  EXPECT_EQ(root_digest("salt", ""), sha256("R" + head('S', 4) + head('A', 0) + "salt"));
}

TEST(PrefixHash, PacksTokensOfAnyCount) {
  std::vector<Token> tokens(70);
  std::iota(tokens.begin(), tokens.end(), (1 << 24) - 70);
  for (std::size_t count = 0; count <= tokens.size(); ++count) {
    std::vector<std::uint8_t> packed(3 * count + 1, 0xAA);
    pack_24_bits(std::span(tokens).first(count), packed.data());
    for (std::size_t i = 0; i < count; ++i) {
      Token token = 0;
      std::memcpy(&token, packed.data() + 3 * i, 3);
      ASSERT_EQ(token, tokens[i]) << count;
    }
  }
}

TEST(PrefixHash, PacksEighteenBitsAndNoByteFarBeyond) {
  std::vector<Token> tokens(70);
  std::iota(tokens.begin(), tokens.end(), (1 << 18) - 70);
  for (std::size_t count = 0; count <= tokens.size(); ++count) {
    const std::size_t size = packed_bytes(count, 18);
    std::vector<std::uint8_t> packed(size + 7, 0xAA);
    pack_18_bits(std::span(tokens).first(count), packed.data());
    for (std::size_t bit = 0; bit < 18 * count; ++bit) {
      const int expected = tokens[bit / 18] >> (bit % 18) & 1;
      ASSERT_EQ(packed[bit / 8] >> (bit % 8) & 1, expected) << count << " tokens, bit " << bit;
    }
  }
}

// Inputs that a careless encoding would confuse.
TEST(PrefixHash, KindsOfInputDoNotMeet) {
  const std::vector<Token> tokens = {1, 2, 3, 4};
  const ExtraKey image{.first_token = 0, .num_tokens = 2, .bytes = "ab"};
  const ExtraKey moved{.first_token = 1, .num_tokens = 2, .bytes = "ab"};
  const ExtraKey longer{.first_token = 0, .num_tokens = 3, .bytes = "ab"};
  const ExtraKey a{.first_token = 0, .num_tokens = 2, .bytes = "a"};
  const ExtraKey b{.first_token = 0, .num_tokens = 2, .bytes = "b"};
  const std::vector<ExtraKey> two = {a, b};
  const std::vector<ExtraKey> swapped = {b, a};
  const auto key = [&](std::string_view salt, std::string_view adapter,
                       std::span<const ExtraKey> extra) {
    const Prompt prompt(tokens, 4, {.salt = salt, .adapter = adapter, .extra_keys = extra});
    return to_string(prompt.key(0));
  };
  const std::vector<std::string> keys = {
      key("", "", {}),   key("x", "", {}),         key("", "x", {}),
      key("x", "x", {}), key("xx", "", {}),        key("", "", {&image, 1}),
      key("ab", "", {}), key("", "", {&moved, 1}), key("", "", {&longer, 1}),
      key("", "", two),  key("", "", swapped),     key("", "", {&a, 1})};
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
  // One block of four tokens is not two of two, nor the same tokens in wider form.
  EXPECT_NE(to_string(Prompt(tokens, 2).key(1)), key("", "", {}));
  EXPECT_NE(block_digest({}, std::vector<Token>{1 << 24}, {}),
            block_digest({}, std::vector<Token>{0}, {}));
}

TEST(Prompt, AKeyDependsOnAllTokensBefore) {
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<Token> other = {1, 9, 3, 4, 5, 6, 7};
  const Prompt prompt(tokens, 2);
  EXPECT_EQ(prompt.num_full_blocks(), 3);
  EXPECT_EQ(prompt.parent_key(0), prompt.root());
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_NE(prompt.key(i), Prompt(other, 2).key(i));
  EXPECT_EQ(prompt.key(2), Prompt(tokens, 2).key(2));
}

TEST(Prompt, ExtendedIsTheSameAsWhole) {
  std::vector<Token> tokens(23);
  std::iota(tokens.begin(), tokens.end(), 0);
  const ExtraKey image{.first_token = 9, .num_tokens = 3, .bytes = "image"};
  const PrefixScope scope{.salt = "s", .adapter = "a", .extra_keys = {&image, 1}};
  const Prompt whole(tokens, 4, scope);
  for (std::size_t cut = 12; cut <= tokens.size(); ++cut) {
    const std::span<const Token> all(tokens);
    const Prompt part(all.first(cut), 4, scope);
    const Prompt extended = part.extended(all.subspan(cut));
    ASSERT_EQ(extended.num_full_blocks(), whole.num_full_blocks());
    for (std::int64_t i = 0; i < whole.num_full_blocks(); ++i) {
      EXPECT_EQ(extended.key(i), whole.key(i)) << cut << ", block " << i;
    }
  }
}

TEST(Prompt, ExtraKeysEnterOnlyTheBlocksThatTheyTouch) {
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6};
  const ExtraKey image{.first_token = 2, .num_tokens = 1, .bytes = "image"};
  const Prompt with(tokens, 2, {.salt = {}, .adapter = {}, .extra_keys = {&image, 1}});
  const Prompt without(tokens, 2);
  EXPECT_EQ(with.key(0), without.key(0));
  EXPECT_NE(with.key(1), without.key(1));
  EXPECT_EQ(with.extra_digest(2), Digest{});
}

TEST(Prompt, RefusesWhatDoesNotFit) {
  const std::vector<Token> tokens = {1, 2, 3};
  const ExtraKey outside{.first_token = 2, .num_tokens = 2, .bytes = "x"};
  EXPECT_THROW(Prompt(tokens, 0), Error);
  EXPECT_THROW(Prompt(tokens, 2, {.salt = {}, .adapter = {}, .extra_keys = {&outside, 1}}), Error);
  EXPECT_THROW((void)Prompt(tokens, 2).key(1), Error);
  EXPECT_THROW((void)Prompt::unhashed(tokens, 2).root(), Error);
  EXPECT_THROW((void)Prompt().extended(tokens), Error);
  EXPECT_EQ(to_string(Digest{}), std::string(64, '0'));
}

}  // namespace
}  // namespace quire
