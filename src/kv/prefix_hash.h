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
//   block    'B'  P: name of the block before, or the root
//                 t: tokens of 24 bits each if all lie in [0, 2^24), else T: tokens of 32 bits
//                 E: name of the extra keys, empty if there are none
//
// The kind tells how many fields there are, and the lengths where each ends: the encoding is
// injective. All vocabularies so far fit 24 bits, which saves a quarter of the time; the 16 bytes
// before the fields of a block keep what follows on 16-byte borders, where it is copied fastest.
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
