// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();

const EngineGroup& group_of(const EngineOptions& options, const EngineLayer& layer) {
  return options.groups[static_cast<std::size_t>(layer.group)];
}

void require_group(const EngineOptions& options, std::size_t index) {
  const EngineGroup& group = options.groups[index];
  validate(group.spec);
  require(group.spec.kv.block_size == options.blocks.block_size, "group ", index,
          ": the spec has blocks of ", group.spec.kv.block_size, " tokens, the block manager of ",
          options.blocks.block_size);
  require(group.spec.alignment == Alignment::kUnaligned || group.spec.mask.causal, "group ", index,
          ": attention that is not causal cannot be computed step by step");
  require(group.spec.kv.layout == KvLayoutId::kPlain, "group ", index,
          ": the layout of the cache is the engine's choice");
}

void require_layer(const EngineOptions& options, std::size_t index) {
  const EngineLayer& layer = options.layers[index];
  require(layer.group >= 0 && static_cast<std::size_t>(layer.group) < options.groups.size(),
          "layer ", index, ": group must be one of the ", options.groups.size(), " groups, is ",
          layer.group);
  require(!layer.params.bias.present(), "layer ", index,
          ": a bias belongs to one batch, not to a layer");
}

// The most tokens that the pools can hold of one sequence.
std::int64_t capacity(const EngineOptions& options) {
  std::int64_t num_tokens = kMaxLength;
  for (const EngineGroup& group : options.groups) {
    const Mask& mask = group.spec.mask;
    const bool grows =
        group.spec.alignment == Alignment::kAligned && mask.window_left < 0 && mask.chunk == 0;
    if (!grows) continue;
    const BlockPoolOptions& pool = options.blocks.pools.at(static_cast<std::size_t>(group.pool));
    num_tokens = std::min(num_tokens, (pool.num_blocks - 1) * options.blocks.block_size);
  }
  return num_tokens;
}

}  // namespace

BlockManagerOptions block_options(const EngineOptions& options) {
  require(!options.groups.empty() && !options.layers.empty(),
          "an engine needs at least one group and one layer, has ", options.groups.size(), " and ",
          options.layers.size());
  require(options.blocks.groups.empty(), "blocks.groups: derived from the groups of the engine");
  BlockManagerOptions blocks = options.blocks;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    require_group(options, i);
    const EngineGroup& group = options.groups[i];
    blocks.groups.push_back({.pool = group.pool,
                             .alignment = group.spec.alignment,
                             .mask = group.spec.mask,
                             .num_sink_tokens = group.num_sink_tokens});
  }
  for (std::size_t i = 0; i < options.layers.size(); ++i) require_layer(options, i);
  return blocks;
}

SchedulerOptions scheduler_options(const EngineOptions& options, const AttentionBackend& backend) {
  SchedulerOptions scheduler = options.scheduler;
  // The last token of a request is never stored.
  const std::int64_t most = std::min(std::max<std::int64_t>(capacity(options), 1) + 1, kMaxLength);
  scheduler.max_length = scheduler.max_length == 0 ? most : std::min(scheduler.max_length, most);
  require(scheduler.max_length < kMaxLength,
          "max_length: all groups have windows, so that only this limits the length of a request");
  if (scheduler.max_cross_tokens == 0) scheduler.max_cross_tokens = scheduler.max_tokens;
  const std::int64_t total = scheduler.max_length * scheduler.max_sequences;
  if (scheduler.max_total_length == 0) scheduler.max_total_length = total;
  std::int64_t block_bytes = 0;
  for (const EngineLayer& layer : options.layers) {
    block_bytes += backend.preferred_layout(group_of(options, layer).spec).block_bytes;
  }
  scheduler.preemption.token_bytes = block_bytes / options.blocks.block_size;
  return scheduler;
}

AttentionSpec stored_spec(const AttentionBackend& backend, const AttentionSpec& spec) {
  AttentionSpec stored = spec;
  stored.kv.layout = backend.preferred_layout(spec).id;
  return stored;
}

BatchBounds group_bounds(const AttentionSpec& spec, const SchedulerOptions& scheduler) {
  if (spec.alignment == Alignment::kAligned) {
    return {.max_sequences = scheduler.max_sequences,
            .max_tokens = scheduler.max_tokens,
            .max_kv_len = scheduler.max_length,
            .max_total_kv_len = scheduler.max_total_length};
  }
  return {.max_sequences = scheduler.max_sequences,
          .max_tokens = std::max(scheduler.max_tokens, scheduler.max_cross_tokens),
          .max_kv_len = scheduler.max_cross_tokens,
          .max_total_kv_len = scheduler.max_cross_tokens * scheduler.max_sequences};
}

}  // namespace quire
