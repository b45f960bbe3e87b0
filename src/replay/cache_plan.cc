// SPDX-License-Identifier: Apache-2.0
#include "replay/cache_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked_int.h"

namespace quire::replay {
namespace {

// The last token of an answer is never computed.
std::int64_t blocks_of(const Workload& workload, std::int64_t index, int block_size) {
  const std::int64_t num_added = std::max<std::int64_t>(workload.output_length(index) - 1, 0);
  return (workload.input_length(index) + num_added + block_size - 1) / block_size;
}

std::int64_t bytes_of(std::int64_t num_blocks, std::int64_t block_bytes) {
  constexpr const char* kWhat = "the number of bytes of the cache";
  return checked_mul(kWhat, checked_add(kWhat, num_blocks, 1), block_bytes);
}

}  // namespace

std::int64_t CachePlan::size_bytes() const {
  return bytes_of(num_blocks, block_bytes);
}

std::int64_t blocks_in(std::int64_t cache_bytes, std::int64_t block_bytes) {
  return std::max<std::int64_t>(cache_bytes / block_bytes - 1, 0);
}

std::int64_t blocks_for_all(const Workload& workload, int block_size) {
  std::int64_t num_blocks = 0;
  for (std::int64_t i = 0; i < workload.size(); ++i)
    num_blocks += blocks_of(workload, i, block_size);
  require(num_blocks <= kMaxCacheBlocks, "the trace has ", num_blocks, " blocks of ", block_size,
          " tokens, more than the ", kMaxCacheBlocks,
          " that one cache can number: give its size, or larger blocks");
  return num_blocks;
}

LargestRequest largest_request(const Workload& workload, int block_size) {
  LargestRequest largest;
  for (std::int64_t i = 0; i < workload.size(); ++i) {
    const std::int64_t num_blocks = blocks_of(workload, i, block_size);
    if (num_blocks > largest.num_blocks) largest = {.index = i, .num_blocks = num_blocks};
  }
  return largest;
}

void require_all_fit(const Workload& workload, const CachePlan& plan) {
  const auto [index, most_blocks] = largest_request(workload, plan.block_size);
  // With a watermark of 1 %: the smallest n with n - n / 100 >= most_blocks.
  const std::int64_t needed = plan.watermark_is_percent
                                  ? most_blocks + (most_blocks > 0 ? (most_blocks - 1) / 99 : 0)
                                  : most_blocks + plan.watermark_blocks;
  require(needed <= plan.num_blocks, "the cache is too small for request ", index + 1,
          " of the trace, its largest: ", workload.input_length(index), " + ",
          workload.output_length(index), " tokens take ", most_blocks, " blocks of ",
          plan.block_size, ", so it needs ", needed, " blocks, the watermark included, or ",
          bytes_of(needed, plan.block_bytes), " bytes, the null block included; it has ",
          plan.num_blocks, " blocks");
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
