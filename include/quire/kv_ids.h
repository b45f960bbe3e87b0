// SPDX-License-Identifier: Apache-2.0
// The names of things in KV management: tokens, blocks and sequences.
#pragma once

#include <compare>
#include <cstdint>

namespace quire {

using Token = std::int32_t;
using BlockId = std::int32_t;

// The block that belongs to nobody: it fills table entries whose keys a window has passed. It is
// never handed out, never written and never freed.
inline constexpr BlockId kNullBlock = 0;

// A sequence of one BlockManager. Ids are not reused: the id of a freed sequence, or of another
// manager, is an error that names it. The default names no sequence.
struct SequenceId {
  std::uint64_t value = 0;
  friend auto operator<=>(const SequenceId&, const SequenceId&) = default;
};

}  // namespace quire
