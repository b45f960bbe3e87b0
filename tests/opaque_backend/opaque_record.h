// SPDX-License-Identifier: Apache-2.0
// Blocks of a private layout that exists only in tests: what is stored is scrambled, sealed with a
// checksum, and lies at odd places, so that no byte of it makes sense to anybody else.
//
// A block is one or two pieces, K and V, or both in one. A piece is
//   magic (4 bytes) | checksum of the rest (4 bytes) | the stored tensors, their bytes permuted
// where a stored tensor is its codes [head][token][dim], then its scales [head][token] if they are
// per (token, head). Host memory; pure functions.
#pragma once

#include <cstdint>

#include "quire/backend.h"
#include "quire/kv_cache.h"

namespace quire::testing {

inline constexpr auto kScrambled =
    static_cast<KvLayoutId>(static_cast<int>(KvLayoutId::kFirstPrivate) + 7);

// Whether K and V are one piece, so that V has no bytes of its own, and whether they lie in records
// or each in an area of its own.
enum class Pieces : std::uint8_t { kApart, kJoint, kAreas };

KvLayout scrambled_layout(const AttentionSpec& spec, Pieces pieces);

// Seals the tokens of a block of a plain cache into a block of a scrambled one, and back. Both
// throw Error(kInternal) for a record that lies where none may; unseal also for one that is not
// what seal left, before it writes.
// REQUIRES: equal shapes, dtypes and scale granularities; the blocks exist.
void seal(const KvCacheView& plain, std::int64_t plain_block, const KvCacheView& scrambled,
          std::int64_t block);
void unseal(const KvCacheView& scrambled, std::int64_t block, const KvCacheView& plain,
            std::int64_t plain_block);

// Whether unseal would take the block.
bool is_sealed(const KvCacheView& scrambled, std::int64_t block);

}  // namespace quire::testing
