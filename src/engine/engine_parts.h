// SPDX-License-Identifier: Apache-2.0
// What an Engine is made of, and the options of its parts, derived from those of the whole.
#pragma once

#include <memory>
#include <optional>

#include "kv/canary.h"
#include "quire/engine.h"

namespace quire {

// Layers of one spec: one table per sequence, one plan per step.
struct Engine::Group {
  int id = 0;
  int num_layers = 0;
  bool fuses_append = false;
  KvCache cache;
  std::optional<KvCache> host_cache;  // the other end of swaps
  std::optional<KvCanary> canary;     // if it is wanted
  std::unique_ptr<WorkspaceBuffer> workspace;
  std::unique_ptr<PreparedBatch> prepared;  // in workspace
};

struct Engine::Layer {
  int index = 0;           // in the model
  int index_in_group = 0;  // in the group's cache
  Group* group = nullptr;
  AttentionParams params;

  const KvCacheView& cache() const { return group->cache.layer(index_in_group); }
};

// Throws naming the group or layer that contradicts the rest.
BlockManagerOptions block_options(const EngineOptions& options);
// With max_length, max_total_length and token_bytes as numbers.
SchedulerOptions scheduler_options(const EngineOptions& options, const AttentionBackend& backend);
// The spec of a group with the layout that the backend prefers.
AttentionSpec stored_spec(const AttentionBackend& backend, const AttentionSpec& spec);
// The largest batch that the scheduler makes, as the layers of a group see it.
BatchBounds group_bounds(const AttentionSpec& spec, const SchedulerOptions& scheduler);

}  // namespace quire
