// SPDX-License-Identifier: Apache-2.0
// The names of blocks in the prefix cache: SHA-256 over tagged, length-prefixed fields.
//
//   message  kind (1 byte); for each field its tag (1 byte) and length in bytes (u32, little
//   endian);
//            the bytes of the fields in the same order
//   root     'R'  S: salt  A: adapter
//   extra    'X'  for each key O: first token, relative to the block (i64)  N: tokens (i64)  K:
//   bytes,
//                 each key a message of its own behind the last
//   block    'B'  u: tokens of 18 bits each, if there are 64 or more and all lie in [0, 2^18);
//                 t: else of 24 bits, if all lie in [0, 2^24); else T: of 32 bits
//                 E: name of the extra keys, empty if there are none
//                 P: name of the block before, or the root
//
// The kind tells how many fields there are, and the lengths where each ends: the encoding is
// injective. All vocabularies so far fit 24 bits and almost all 18, which saves a quarter and
// another quarter of the time. What takes the name of the block before comes last: a block of 16
// tokens is 64 bytes up to there, one step of the digest that need not wait for the block before.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quire/prompt.h"

namespace quire {

Digest root_digest(std::string_view salt, std::string_view adapter) noexcept;

// Of the keys that touch the tokens [first_token, first_token + block_size); zero if none does.
Digest extra_keys_digest(std::span<const ExtraKey> keys, std::int64_t first_token,
                         int block_size) noexcept;

// `extra` all zero: there are no extra keys.
Digest block_digest(const Digest& parent, std::span<const Token> tokens,
                    const Digest& extra) noexcept;

}  // namespace quire
