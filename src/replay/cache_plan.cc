// SPDX-License-Identifier: Apache-2.0
#include "replay/cache_plan.h"

#include <limits>

#include "base/check.h"

namespace quire::replay {
namespace {

std::int64_t blocks_of(const Workload& workload, std::int64_t index, int block_size) {
  const std::int64_t length = workload.input_length(index) + workload.output_length(index);
  return (length + block_size - 1) / block_size;
}

}  // namespace

std::int64_t blocks_in(std::int64_t cache_bytes, std::int64_t block_bytes) {
  require(cache_bytes / block_bytes >= 2, "a cache of ", cache_bytes,
          " bytes is too small: a block has ", block_bytes, ", and two are the least");
  return cache_bytes / block_bytes - 1;
}

std::int64_t blocks_for_all(const Workload& workload, int block_size) {
  std::int64_t num_blocks = 0;
  for (std::int64_t i = 0; i < workload.size(); ++i)
    num_blocks += blocks_of(workload, i, block_size);
  require(num_blocks < std::numeric_limits<BlockId>::max(), "the trace has ", num_blocks,
          " blocks of ", block_size, " tokens, more than one cache can number: give its size");
  return num_blocks;
}

void require_all_fit(const Workload& workload, const CachePlan& plan) {
  std::int64_t largest = 0;
  std::int64_t most_blocks = 0;
  for (std::int64_t i = 0; i < workload.size(); ++i) {
    const std::int64_t num_blocks = blocks_of(workload, i, plan.block_size);
    if (num_blocks > most_blocks) {
      most_blocks = num_blocks;
      largest = i;
    }
  }
  // With a watermark of 1 %: the smallest n with n - n / 100 >= most_blocks.
  const std::int64_t needed = plan.watermark_is_percent
                                  ? most_blocks + (most_blocks > 0 ? (most_blocks - 1) / 99 : 0)
                                  : most_blocks + plan.watermark_blocks;
  require(needed <= plan.num_blocks, "the cache is too small for request ", largest + 1,
          " of the trace, its largest: ", workload.input_length(largest), " + ",
          workload.output_length(largest), " tokens are ", most_blocks, " blocks of ",
          plan.block_size, ", with the watermark ", needed, ", a cache of ",
          (needed + 1) * plan.block_bytes, " bytes; it has ", plan.num_blocks, " blocks, ",
          plan.size_bytes(), " bytes");
}

BlockManagerOptions manager_options(const CachePlan& plan) {
  return {.block_size = plan.block_size,
          .pools = {{.num_blocks = plan.num_blocks + 1,
                     .num_host_blocks = plan.num_host_blocks == 0 ? 0 : plan.num_host_blocks + 1,
                     .watermark_blocks = plan.watermark_blocks}},
          .groups = {LayerGroup{}},
          .share_tails = plan.share_tails};
}

}  // namespace quire::replay
