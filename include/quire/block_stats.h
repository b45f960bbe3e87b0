// SPDX-License-Identifier: Apache-2.0
// How full a cache is and what it has done: a copy of the numbers at one moment.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// Blocks of one pool by state; the null block is in none of them.
struct PoolStats {
  std::int64_t num_usable = 0;  // free + evictable + in use, unless a shrink waits
  std::int64_t num_free = 0;
  std::int64_t num_evictable = 0;  // unreferenced, content kept for reuse
  std::int64_t num_in_use = 0;     // held by sequences or by copies under way
  std::int64_t num_host_usable = 0;
  std::int64_t num_host_in_use = 0;
  double fragmentation = 0;  // share of the slots of blocks in use that hold no token yet

  double occupancy() const noexcept {
    return num_usable == 0 ? 0.0
                           : static_cast<double>(num_in_use) / static_cast<double>(num_usable);
  }
};

// All counts since construction. Blocks of prompts count once, not once per layer group.
struct BlockStats {
  std::vector<PoolStats> pools;
  std::int64_t num_sequences = 0;
  std::int64_t num_swapped = 0;  // of num_sequences

  std::int64_t num_admitted = 0;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_prompt_blocks = 0;  // full ones
  std::int64_t num_hit_blocks = 0;     // of num_prompt_blocks
  std::int64_t num_hit_tokens = 0;     // those of shared tails included

  std::int64_t num_stored = 0;       // blocks that became findable, all groups
  std::int64_t num_duplicates = 0;   // of num_stored: their content was known already
  std::int64_t num_evictions = 0;    // blocks whose content was given up for a new one
  std::int64_t num_copies = 0;       // copy-on-write, blocks
  std::int64_t num_swapped_out = 0;  // blocks copied to the host
  std::int64_t num_swapped_in = 0;   // blocks copied back
  std::int64_t num_swap_hits = 0;    // blocks found again on the device instead
  std::int64_t num_rejected = 0;     // tokens rolled back

  double hit_rate() const noexcept {
    return num_prompt_blocks == 0
               ? 0.0
               : static_cast<double>(num_hit_blocks) / static_cast<double>(num_prompt_blocks);
  }
};

}  // namespace quire
