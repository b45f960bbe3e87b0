// SPDX-License-Identifier: Apache-2.0
// How large a cache is, in blocks and bytes, and whether every request of a workload fits.
#pragma once

#include <cstdint>

#include "quire/block_manager.h"
#include "replay/workload.h"

namespace quire::replay {

struct CachePlan {
  int block_size = 16;
  std::int64_t block_bytes = 0;  // of one block in all layers
  std::int64_t num_blocks = 0;   // that can be used; one more stands for nobody
  std::int64_t num_host_blocks = 0;
  std::int64_t watermark_blocks = 0;
  bool watermark_is_percent = false;  // it is 1 % of num_blocks, and grows with it
  bool share_tails = false;           // partly filled last blocks are found too, and copied

  std::int64_t size_bytes() const noexcept { return (num_blocks + 1) * block_bytes; }
};

// Blocks of a cache of so many bytes; throws if there is no room for one beside the null block.
std::int64_t blocks_in(std::int64_t cache_bytes, std::int64_t block_bytes);

// Enough for all requests at once, so that nothing is ever evicted.
std::int64_t blocks_for_all(const Workload& workload, int block_size);

// Throws Error(kInvalidArgument) naming the first request that does not fit, and what it needs.
void require_all_fit(const Workload& workload, const CachePlan& plan);

// One layer group over one pool.
BlockManagerOptions manager_options(const CachePlan& plan);

}  // namespace quire::replay
