// SPDX-License-Identifier: Apache-2.0
// Tokens as 18 or 24 bits each, one behind the other, lowest bit first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/kv_ids.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace quire {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");

// The bits that are set in any of the tokens.
inline std::uint32_t bits_in(std::span<const Token> tokens) noexcept {
  std::uint32_t bits[4] = {};  // fixed lanes, so that the compiler makes a vector of them
  std::size_t i = 0;
  for (; i + 4 <= tokens.size(); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      bits[lane] |= static_cast<std::uint32_t>(tokens[i + lane]);
    }
  }
  for (; i < tokens.size(); ++i) bits[0] |= static_cast<std::uint32_t>(tokens[i]);
  return bits[0] | bits[1] | bits[2] | bits[3];
}

constexpr std::size_t packed_bytes(std::size_t num_tokens, std::size_t token_bits) noexcept {
  return (num_tokens * token_bits + 7) / 8;
}

#if defined(__x86_64__)
// Four tokens to the low 12 bytes.
inline __m128i pack_4_tokens(const Token* tokens) noexcept {
  const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens));
  const __m128i low = _mm_and_si128(four, _mm_set1_epi64x(0xFFFFFF));
  const __m128i pairs = _mm_or_si128(low, _mm_slli_epi64(_mm_srli_epi64(four, 32), 24));
  return _mm_or_si128(_mm_move_epi64(pairs), _mm_slli_si128(_mm_srli_si128(pairs, 8), 6));
}
#endif

// Writes 3 * tokens.size() bytes, and up to 1 beyond. REQUIRES: all lie in [0, 2^24).
inline void pack_24_bits(std::span<const Token> tokens, std::uint8_t* out) noexcept {
  std::size_t i = 0;
#if defined(__x86_64__)
  // Whole 16-byte stores, which the loads of the hash can take over without waiting.
  for (; i + 16 <= tokens.size(); i += 16, out += 48) {
    const __m128i a = pack_4_tokens(&tokens[i]);
    const __m128i b = pack_4_tokens(&tokens[i + 4]);
    const __m128i c = pack_4_tokens(&tokens[i + 8]);
    const __m128i d = pack_4_tokens(&tokens[i + 12]);
    auto* target = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(target, _mm_or_si128(a, _mm_slli_si128(b, 12)));
    _mm_storeu_si128(target + 1, _mm_or_si128(_mm_srli_si128(b, 4), _mm_slli_si128(c, 8)));
    _mm_storeu_si128(target + 2, _mm_or_si128(_mm_srli_si128(c, 8), _mm_slli_si128(d, 4)));
  }
#endif
  for (; i < tokens.size(); ++i, out += 3) std::memcpy(out, &tokens[i], sizeof(Token));
}

// Writes packed_bytes(tokens.size(), 18) bytes, and up to 7 beyond. REQUIRES: all lie in [0, 2^18).
inline void pack_18_bits(std::span<const Token> tokens, std::uint8_t* out) noexcept {
  const auto pair = [&](std::size_t i) {
    std::uint64_t two = 0;
    std::memcpy(&two, &tokens[i], sizeof(two));
    return (two & 0x3FFFF) | (two >> 32 << 18);
  };
  const auto put = [&](std::uint64_t word, std::size_t num_bytes) {
    std::memcpy(out, &word, sizeof(word));
    out += num_bytes;
  };
  std::size_t i = 0;
  for (; i + 8 <= tokens.size(); i += 8) {
    const std::uint64_t c = pair(i + 4);
    const std::uint64_t d = pair(i + 6);
    const std::uint64_t b = pair(i + 2);
    put(pair(i) | (b << 36), 8);
    put((b >> 28) | (c << 8) | (d << 44), 8);
    put(d >> 20, 2);
  }
  std::uint64_t bits = 0;
  std::size_t num_bits = 0;
  for (; i < tokens.size(); ++i) {
    bits |= static_cast<std::uint64_t>(tokens[i]) << num_bits;
    num_bits += 18;
    for (; num_bits >= 8; num_bits -= 8, bits >>= 8) put(bits, 1);
  }
  if (num_bits > 0) put(bits, 1);
}

}  // namespace quire
