// SPDX-License-Identifier: Apache-2.0
// How large a cache is, in blocks and bytes, and whether every request of a workload fits.
#pragma once

#include <cstdint>
#include <limits>

#include "quire/block_manager.h"
#include "replay/workload.h"

namespace quire::replay {

// That can be used: one more stands for nobody.
inline constexpr std::int64_t kMaxCacheBlocks = std::numeric_limits<BlockId>::max() - 1;

struct CachePlan {
  int block_size = 16;
  std::int64_t block_bytes = 0;  // of one block in all layers
  std::int64_t num_blocks = 0;   // that can be used; one more stands for nobody
  std::int64_t num_host_blocks = 0;
  std::int64_t watermark_blocks = 0;
  bool watermark_is_percent = false;  // it is 1 % of num_blocks, and grows with it
  bool share_tails = false;           // partly filled last blocks are found too, and copied

  // The null block included. Throws if that does not fit in 64 bits.
  std::int64_t size_bytes() const;
};

// Blocks of a cache of so many bytes that can be used beside the null block: 0 if there is room for
// none.
std::int64_t blocks_in(std::int64_t cache_bytes, std::int64_t block_bytes);

// Enough for all requests at once, so that nothing is ever evicted.
std::int64_t blocks_for_all(const Workload& workload, int block_size);

// The request that needs most blocks, the first of them.
struct LargestRequest {
  std::int64_t index = 0;
  std::int64_t num_blocks = 0;
};
LargestRequest largest_request(const Workload& workload, int block_size);

// Throws Error(kInvalidArgument) naming the largest request if it does not fit, the blocks and the
// bytes that it needs, and those that there are.
void require_all_fit(const Workload& workload, const CachePlan& plan);

// One layer group over one pool.
BlockManagerOptions manager_options(const CachePlan& plan);

}  // namespace quire::replay
