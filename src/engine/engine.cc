// SPDX-License-Identifier: Apache-2.0
#include "quire/engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/engine_parts.h"

namespace quire {

StepResult Engine::step(const QkvSource& qkv, const OutputSink& output) try {
  begin_step();                                                       // refused once broken
  const ScheduledBatch& batch = scheduler_.schedule(block_manager_);  // owns its tables and slots
  computing_ = &batch;
  copy_blocks(batch.copies());  // copy-on-write, swap
  if (batch.empty()) return finish_step(batch);
  for (Group& group : groups_) {  // full attention, windowed, ...: one plan each
    backend_->prepare(*group.prepared, batch.view(group.id), stream_);
  }
  for (const Layer& layer : layers_) {
    const Qkv input = qkv(layer.index, batch);
    const KvSource source = kv_source(layer, input);  // K and V are stored before they are read
    backend_->attend(*layer.group->prepared, layer.params, input.q, source, output(layer.index),
                     stream_);
  }
  check_writes(batch);  // if wanted: nobody has written what belongs to others
  return finish_step(batch);
} catch (...) {
  undo_step();
  throw;
}

Engine::Engine(std::unique_ptr<AttentionBackend> backend, const EngineOptions& options)
    : backend_(std::move(backend)),
      stream_(options.stream),
      block_manager_(block_options(options)),
      scheduler_(scheduler_options(options, *backend_), block_manager_.options()) {
  groups_.reserve(options.groups.size());  // layers point at them
  for (const EngineGroup& group : options.groups) add_group(options, group);
  for (std::size_t i = 0; i < options.layers.size(); ++i) {
    Group& group = groups_[static_cast<std::size_t>(options.layers[i].group)];
    layers_.push_back({.index = static_cast<int>(i),
                       .index_in_group = group.num_layers++,
                       .group = &group,
                       .params = options.layers[i].params});
  }
  const SchedulerOptions& limits = scheduler_.options();
  block_manager_.reserve(limits.max_sequences, limits.max_length);
}

// Work under way still uses the caches.
Engine::~Engine() {
  try {
    backend_->memory().synchronize(stream_);
  } catch (const Error&) {  // the device is lost: nothing runs on it any more
  }
}

void Engine::add_group(const EngineOptions& options, const EngineGroup& group) {
  const AttentionSpec spec = stored_spec(*backend_, group.spec);
  const BlockPoolOptions& pool = options.blocks.pools.at(static_cast<std::size_t>(group.pool));
  const int id = static_cast<int>(groups_.size());
  KvCache::Options storage{.num_blocks = pool.num_blocks, .pages = options.pages};
  storage.num_layers = static_cast<int>(
      std::ranges::count(options.layers, id, [](const EngineLayer& layer) { return layer.group; }));
  require(storage.num_layers >= 1, "group ", id, ": has no layer");
  const Support support = backend_->supports(spec);
  const BatchBounds bounds = group_bounds(spec, scheduler_.options());
  auto workspace =
      std::make_unique<WorkspaceBuffer>(backend_->memory(), backend_->workspace(spec, bounds));
  auto prepared = backend_->make_prepared(spec, bounds, workspace->view());
  const KvLayout layout = backend_->preferred_layout(group.spec);
  groups_.push_back({.id = id,
                     .num_layers = 0,
                     .fuses_append = support.fused_append,
                     .cache = KvCache(backend_->memory(), spec, layout, storage),
                     .host_cache = {},
                     .canary = {},
                     .workspace = std::move(workspace),
                     .prepared = std::move(prepared)});
  Group& made = groups_.back();
  std::span<const KvCacheView> host_layers;
  if (pool.num_host_blocks > 1) {
    storage.num_blocks = pool.num_host_blocks;
    storage.on_host = true;
    host_layers = made.host_cache.emplace(backend_->memory(), spec, layout, storage).layers();
  }
  if (options.canary) made.canary.emplace(block_manager_, id, made.cache.layers(), host_layers);
}

Prompt Engine::make_prompt(std::span<const Token> tokens, const PrefixScope& scope) const {
  return Prompt(tokens, block_manager_.options().block_size, scope);
}

const KvCacheView& Engine::cache(int layer) const {
  require(layer >= 0 && static_cast<std::size_t>(layer) < layers_.size(), "layer ", layer,
          " is not one of the ", layers_.size(), " layers");
  return layers_[static_cast<std::size_t>(layer)].cache();
}

std::int64_t Engine::cache_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const Group& group : groups_) {
    bytes += group.cache.size_bytes();
    if (group.host_cache) bytes += group.host_cache->size_bytes();
  }
  return bytes;
}

// The arrays of the last batch are filled again, so whoever reads them must have finished.
void Engine::begin_step() {
  require_usable();
  num_stages_run_ = 0;
  backend_->memory().synchronize(stream_);
  require_no_device_error();
}

// From here on nothing can be undone.
StepResult Engine::finish_step(const ScheduledBatch& batch) {
  computing_ = nullptr;
  require_no_device_error();
  return scheduler_.commit(batch);
}

void Engine::require_usable() const {
  if (broken_by_ == nullptr) return;
  std::string reason = "an exception";
  try {
    std::rethrow_exception(broken_by_);
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
  }
  fail(ErrorCode::kInternal, "the engine takes no further steps since: ", reason);
}

// A stage that was interrupted can be run again: none of its blocks is both read and written.
void Engine::copy_blocks(std::span<const CopyStage> stages) {
  const auto copy = [this](const KvCache& src, const KvCache& dst,
                           std::span<const BlockCopy> copies) {
    if (!copies.empty()) backend_->copy_blocks(src.layers(), dst.layers(), copies, stream_);
  };
  for (const CopyStage& stage : stages) {
    for (const Group& group : groups_) {
      const GroupCopies& copies = stage.groups[static_cast<std::size_t>(group.id)];
      copy(group.cache, group.cache, copies.on_device);
      if (!group.host_cache) continue;
      copy(group.cache, *group.host_cache, copies.to_host);
      copy(*group.host_cache, group.cache, copies.to_device);
      copy(*group.host_cache, *group.host_cache, copies.on_host);
    }
    for (Group& group : groups_) {
      if (group.canary) group.canary->copied(stage.groups);
    }
    ++num_stages_run_;
  }
}

void Engine::check_writes(const ScheduledBatch& batch) {
  for (Group& group : groups_) {
    if (!group.canary) continue;
    const bool is_cross = group.prepared->spec().alignment == Alignment::kUnaligned;
    const ArrayView<std::int64_t> slots = batch.view(group.id).kv.slots;
    std::span<const std::int64_t> left(slots.data, static_cast<std::size_t>(slots.size));
    for (const ScheduledSequence& sequence : batch.sequences()) {
      const auto count =
          static_cast<std::size_t>(is_cross ? sequence.num_cross_rows : sequence.num_tokens);
      group.canary->stored(sequence.sequence, left.first(count));
      left = left.subspan(count);
    }
    group.canary->verify();
  }
}

// A layer of cross-attention has nothing to store in most steps; backends that store inside attend
// want to be told so by tensors without rows.
KvSource Engine::kv_source(const Layer& layer, const Qkv& input) const {
  const PreparedBatch& prepared = *layer.group->prepared;
  const std::int64_t num_rows = prepared.facts().num_new_kv;
  require(input.k.present() || num_rows == 0, "layer ", layer.index, ": K is missing, ", num_rows,
          " rows are to be stored");
  if (input.k.present()) return {layer.cache(), {input.k, input.v}};
  if (!layer.group->fuses_append) return layer.cache();
  const AttentionSpec& spec = prepared.spec();
  const auto no_rows = [&](int dim) {
    return TensorView(nullptr, spec.q_dtype, {0, spec.num_kv_heads, dim}, input.q.device);
  };
  const TensorView v = spec.kv.v_in_k ? TensorView() : no_rows(spec.value_dim);
  return {layer.cache(), {no_rows(spec.head_dim), v}};
}

void Engine::require_no_device_error() {
  for (const Group& group : groups_) {
    const Status status = backend_->poll(*group.prepared);
    if (!status.ok()) throw Error(status.code, status.message);
  }
}

// Called while an exception is handled. What a callback did wrong, or memory that ran out, leaves a
// step that can be repeated; anything else may leave blocks of unknown content.
void Engine::undo_step() noexcept {
  if (broken_by_ != nullptr) return;
  const ScheduledBatch* batch = std::exchange(computing_, nullptr);
  // Without a batch under way nothing has begun, unless one could not be committed.
  bool is_repeatable = batch != nullptr || !scheduler_.has_batch();
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal || error.code() == ErrorCode::kDevice) {
      is_repeatable = false;
    }
  } catch (...) {
  }
  try {
    if (is_repeatable && batch != nullptr) scheduler_.abandon(*batch, num_stages_run_);
  } catch (...) {
    is_repeatable = false;
  }
  if (!is_repeatable) broken_by_ = std::current_exception();
}

}  // namespace quire
