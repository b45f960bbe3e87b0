// SPDX-License-Identifier: Apache-2.0
// The names of blocks in the prefix cache: SHA-256 over tagged, length-prefixed fields.
//
//   field  tag (1 byte), length in bytes (u32, little endian), bytes
//   root   'R'  S: salt  A: adapter
//   extra  'X'  for each key: O: first token, relative to the block (i64)  N: tokens (i64)  K: bytes
//   block  'B'  T: tokens (i32 each)  P: name of the block before, or the root  E: extra, if any
//
// The first byte tells the kinds apart and every field its own end, so the encoding is injective.
// Tokens come first: 16 of them, the fields and the padding still fit two rounds of 64 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quire/prompt.h"

namespace quire {

Digest root_digest(std::string_view salt, std::string_view adapter) noexcept;

// Of the keys that touch the tokens [first_token, first_token + block_size); zero if none does.
Digest extra_keys_digest(std::span<const ExtraKey> keys, std::int64_t first_token, int block_size);

// `extra` all zero: the field is left out.
Digest block_digest(const Digest& parent, std::span<const Token> tokens,
                    const Digest& extra) noexcept;

}  // namespace quire
