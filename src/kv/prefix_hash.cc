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

// Built in one buffer: a block of 16 tokens is one call to the library.
Digest block_digest(const Digest& parent, std::span<const Token> tokens,
                    const Digest& extra) noexcept {
  constexpr std::size_t kStagedTokens = 256;  // 1 KiB: stays in the first cache
  constexpr std::size_t kHeadsBytes = 1 + 3 * kHeadBytes;
  static_assert(kHeadsBytes == 16);
  alignas(16) std::uint8_t stage[kHeadsBytes + 2 * sizeof(Digest) + kStagedTokens * sizeof(Token)];
  const bool is_packed = fits_24_bits(tokens);
  const std::size_t token_bytes = is_packed ? 3 : sizeof(Token);
  const bool has_extra = extra != Digest{};
  stage[0] = 'B';
  put_head(stage + 1, 'P', sizeof(Digest));
  put_head(stage + 1 + kHeadBytes, is_packed ? 't' : 'T', tokens.size() * token_bytes);
  put_head(stage + 1 + 2 * kHeadBytes, 'E', has_extra ? sizeof(Digest) : 0);
  std::size_t size = kHeadsBytes;
  if (!is_broken(Mutant::kIgnoresParent)) {
    std::memcpy(stage + size, parent.bytes.data(), sizeof(Digest));
    size += sizeof(Digest);
  }
  Sha256 hash;
  for (std::size_t first = 0; first < tokens.size(); first += kStagedTokens) {
    const std::span<const Token> some =
        tokens.subspan(first, std::min(kStagedTokens, tokens.size() - first));
    if (is_packed) {
      pack_24_bits(some, stage + size);
    } else {
      std::memcpy(stage + size, some.data(), some.size_bytes());
    }
    size += some.size() * token_bytes;
    if (first + some.size() == tokens.size()) break;
    hash.add(stage, size);
    size = 0;
  }
  if (has_extra) {
    std::memcpy(stage + size, extra.bytes.data(), sizeof(Digest));
    size += sizeof(Digest);
  }
  hash.add(stage, size);
  return hash.finish();
}

}  // namespace quire
