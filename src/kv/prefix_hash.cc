// SPDX-License-Identifier: Apache-2.0
// libcrypto's one-algorithm calls are used although they are deprecated: the general ones cost
// 120 ns more per digest, which is as much as hashing a block of 16 tokens.
//
// Measured, Xeon (Ice Lake) at 3.4 GHz: 64 bytes take 48 ns with the SHA instructions, which keep
// their port busy, so that hashing two messages side by side gains nothing.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "kv/prefix_hash.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "kv/mutation.h"
#include "kv/token_packing.h"

namespace quire {
namespace {

class Sha256 {
 public:
  Sha256() noexcept { SHA256_Init(&context_); }
  void add(const void* data, std::size_t size_bytes) noexcept {
    SHA256_Update(&context_, data, size_bytes);
  }
  Digest finish() noexcept {
    Digest digest;
    SHA256_Final(digest.bytes.data(), &context_);
    return digest;
  }

 private:
  SHA256_CTX context_;
};

constexpr std::size_t kStepBytes = SHA256_CBLOCK;

// The same for a message that the caller gathers in whole steps. The last ones get their padding in
// the caller's buffer, and the result is taken from the state: half the cost of a short message.
class Sha256Steps {
 public:
  Sha256Steps() noexcept { SHA256_Init(&context_); }

  // REQUIRES: size_bytes % kStepBytes == 0.
  void add(const std::uint8_t* data, std::size_t size_bytes) noexcept {
    SHA256_Update(&context_, data, size_bytes);
    added_bytes_ += size_bytes;
  }

  // `data` is the rest of the message. REQUIRES: 2 * kStepBytes may be written from data +
  // size_bytes.
  Digest finish(std::uint8_t* data, std::size_t size_bytes) noexcept {
    const std::uint64_t message_bits = 8 * (added_bytes_ + size_bytes);
    const std::size_t end =
        (size_bytes + 1 + sizeof(message_bits) + kStepBytes - 1) / kStepBytes * kStepBytes;
    data[size_bytes] = 0x80;
    std::memset(data + size_bytes + 1, 0, end - size_bytes - 1);
    const std::uint64_t big_endian = __builtin_bswap64(message_bits);
    std::memcpy(data + end - sizeof(big_endian), &big_endian, sizeof(big_endian));
    SHA256_Update(&context_, data, end);
    Digest digest;
    for (std::size_t i = 0; i < digest.bytes.size() / 4; ++i) {
      const std::uint32_t word = __builtin_bswap32(context_.h[i]);
      std::memcpy(digest.bytes.data() + 4 * i, &word, sizeof(word));
    }
    return digest;
  }

 private:
  SHA256_CTX context_;
  std::size_t added_bytes_ = 0;
};

struct Field {
  char tag = 0;
  std::string_view bytes;
};

constexpr std::size_t kHeadBytes = 5;  // tag and length of a field

void put_head(std::uint8_t* out, char tag, std::size_t size_bytes) noexcept {
  const auto length = static_cast<std::uint32_t>(size_bytes);
  out[0] = static_cast<std::uint8_t>(tag);
  std::memcpy(out + 1, &length, sizeof(length));
}

template <std::size_t kNumFields>
void add_message(Sha256& hash, char kind, const std::array<Field, kNumFields>& fields) noexcept {
  std::array<std::uint8_t, 1 + kNumFields * kHeadBytes> heads;
  heads[0] = static_cast<std::uint8_t>(kind);
  for (std::size_t i = 0; i < kNumFields; ++i) {
    put_head(heads.data() + 1 + i * kHeadBytes, fields[i].tag, fields[i].bytes.size());
  }
  hash.add(heads.data(), heads.size());
  for (const Field& field : fields) hash.add(field.bytes.data(), field.bytes.size());
}

constexpr std::size_t kBlockHeadsBytes = 1 + 3 * kHeadBytes;
static_assert(kBlockHeadsBytes == 16, "the tokens of a block begin where 16 bytes do");

// As put_head three times, in two words: what reads them next reads all at once.
void put_block_heads(std::uint8_t* out, std::size_t num_tokens, std::size_t token_bits,
                     bool has_extra) noexcept {
  constexpr std::uint64_t kTags[] = {'u', 't', 'T'};
  const std::uint64_t tag = kTags[token_bits == 18 ? 0 : token_bits == 24 ? 1 : 2];
  const std::uint64_t token_bytes = packed_bytes(num_tokens, token_bits);
  const std::uint64_t extra_bytes = has_extra ? sizeof(Digest) : 0;
  const std::uint64_t words[2] = {std::uint64_t{'B'} | tag << 8 | token_bytes << 16 |
                                      std::uint64_t{'E'} << 48 | extra_bytes << 56,
                                  std::uint64_t{'P'} << 24 | std::uint64_t{sizeof(Digest)} << 32};
  std::memcpy(out, words, sizeof(words));
}

std::size_t put(const Digest& digest, std::uint8_t* out) noexcept {
  std::memcpy(out, digest.bytes.data(), sizeof(digest));
  return sizeof(digest);
}

void put_tokens(std::span<const Token> tokens, std::size_t token_bits, std::uint8_t* out) noexcept {
  if (token_bits == 18) return pack_18_bits(tokens, out);
  if (token_bits == 24) return pack_24_bits(tokens, out);
  std::memcpy(out, tokens.data(), tokens.size_bytes());
}

std::string_view bytes_of(const std::int64_t& number) noexcept {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

}  // namespace

Digest root_digest(std::string_view salt, std::string_view adapter) noexcept {
  if (is_broken(Mutant::kIgnoresSalt)) salt = {};
  if (is_broken(Mutant::kIgnoresAdapter)) adapter = {};
  Sha256 hash;
  add_message<2>(hash, 'R', {Field{'S', salt}, Field{'A', adapter}});
  return hash.finish();
}

Digest extra_keys_digest(std::span<const ExtraKey> keys, std::int64_t first_token,
                         int block_size) noexcept {
  Sha256 hash;
  bool any = false;
  for (const ExtraKey& key : keys) {
    const std::int64_t offset = key.first_token - first_token;
    if (offset >= block_size || offset + key.num_tokens <= 0) continue;
    any = true;
    add_message<3>(hash, 'X',
                   {Field{'O', bytes_of(offset)}, Field{'N', bytes_of(key.num_tokens)},
                    Field{'K', key.bytes}});
  }
  if (!any || is_broken(Mutant::kIgnoresExtraKeys)) return {};
  return hash.finish();
}

// Built in one buffer in whole steps of the digest, with the padding of the last: the library
// copies nothing, and a block of 16 tokens is one call. All stores are as wide as the loads that
// follow.
Digest block_digest(const Digest& parent, std::span<const Token> tokens,
                    const Digest& extra) noexcept {
  constexpr std::size_t kStagedTokens = 256;  // 1 KiB: stays in the first cache
  constexpr std::size_t kSlack = 2 * sizeof(Digest) + 2 * kStepBytes + 8;
  const std::uint32_t bits = bits_in(tokens);
  const std::size_t token_bits = tokens.size() >= 64 && bits >> 18 == 0 ? 18
                                 : bits >> 24 == 0                      ? 24
                                                                        : 32;
  const bool has_extra = extra != Digest{};
  const bool has_parent = !is_broken(Mutant::kIgnoresParent);
  alignas(16) std::uint8_t stage[kStepBytes + kStagedTokens * sizeof(Token) + kSlack];
  put_block_heads(stage, tokens.size(), token_bits, has_extra);
  std::size_t size = kBlockHeadsBytes;
  Sha256Steps hash;
  for (std::size_t first = 0; first < tokens.size(); first += kStagedTokens) {
    const std::span<const Token> some =
        tokens.subspan(first, std::min(kStagedTokens, tokens.size() - first));
    put_tokens(some, token_bits, stage + size);
    size += packed_bytes(some.size(), token_bits);
    const std::size_t whole = size - size % kStepBytes;
    if (first + some.size() == tokens.size() || whole == 0) continue;
    hash.add(stage, whole);
    size -= whole;
    std::memcpy(stage, stage + whole, kStepBytes);
  }
  if (has_extra) size += put(extra, stage + size);
  if (has_parent) size += put(parent, stage + size);
  return hash.finish(stage, size);
}

}  // namespace quire
