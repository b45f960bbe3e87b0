// SPDX-License-Identifier: Apache-2.0
// The attention layers of a whole model: scheduler, block manager, KV caches and a backend.
//
// One step(): who runs, which blocks are copied, then for every layer K and V are stored and
// attention is computed. The caller has the rest of the model: it gives Q, K and V of a layer for
// the tokens of the batch, takes the outputs, and chooses tokens between steps.
//
// Every layer belongs to a group: layers of one AttentionSpec, which share block tables and a plan.
// Each group has a KvCache of its own, in the layout that the backend prefers, with as many blocks
// as its pool (and as many on the host as the pool has there). Memory for batches is made once.
//
// submit, cancel and num_unfinished may be called from any thread, everything else from one. A step
// that throws because of what a callback did or gave, or because host memory ran out, is undone and
// can be repeated; after a broken invariant or a device error (kInternal, kDevice) the engine
// refuses every further step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "quire/block_manager.h"
#include "quire/export.h"
#include "quire/kv_cache.h"
#include "quire/prepared_batch.h"
#include "quire/request.h"
#include "quire/scheduled_batch.h"
#include "quire/scheduler.h"

namespace quire {

struct EngineGroup {
  AttentionSpec spec{};  // kv.layout is set by the engine; kv.block_size is that of the blocks
  int pool = 0;          // of BlockManagerOptions::pools; groups of one pool divide its block ids
  std::int64_t num_sink_tokens = 0;
};

struct EngineLayer {
  int group = 0;
  AttentionParams params{};  // arrays stay the caller's
};

struct EngineOptions {
  std::vector<EngineGroup> groups{};
  std::vector<EngineLayer> layers{};  // in the order of the model
  // REQUIRES: `groups` in it is empty (the engine derives them), block_size that of every spec.
  BlockManagerOptions blocks{};
  // max_length 0: what the smallest pool of a group without a window holds.
  SchedulerOptions scheduler{};
  PageHint pages = PageHint::kDefault;
  Stream stream{};
  // For debugging: every step reads all K and V that requests can see, and throws Error(kInternal)
  // naming sequence, block and slot of the first that was written by somebody with no right to.
  // REQUIRES: the caches lie in host memory, in a layout that is not opaque.
  bool canary = false;
};

// Rows as in ScheduledBatch. Layers of cross-attention give K and V of the encoders of those
// sequences that have num_cross_rows > 0, and none (or no rows) where the batch has none.
struct Qkv {
  TensorView q;  // [num_tokens, num_q_heads, head_dim]
  TensorView k;  // [num_tokens, num_kv_heads, head_dim]
  TensorView v;  // [num_tokens, num_kv_heads, value_dim]; absent with v_in_k
};

// Called once per layer and step, in the order of the layers: the output of a layer has been
// written (or is on its way on the stream) when the next one is asked for. They must not call the
// engine, but for submit and cancel.
using QkvSource = std::function<Qkv(int layer, const ScheduledBatch& batch)>;
using OutputSink = std::function<AttentionOutput(int layer)>;

class QUIRE_API Engine {
 public:
  // Throws Error(kUnsupported) with every reason if the backend refuses a spec.
  Engine(std::unique_ptr<AttentionBackend> backend, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread: see Scheduler.
  RequestId submit(Request request) { return scheduler_.submit(std::move(request)); }
  void cancel(RequestId id) { scheduler_.cancel(id); }
  std::int64_t num_unfinished() const { return scheduler_.num_unfinished(); }

  StepResult step(const QkvSource& qkv, const OutputSink& output);

  // Between steps: see Scheduler.
  void extend(RequestId id, std::span<const Token> tokens, std::span<const Token> drafts = {}) {
    scheduler_.extend(id, tokens, drafts);
  }
  void extend(RequestId id, Token token) { scheduler_.extend(id, token); }
  void finish(RequestId id) { scheduler_.finish(id); }
  RequestId fork(RequestId id) { return scheduler_.fork(id); }

  // A prompt for this engine's blocks.
  Prompt make_prompt(std::span<const Token> tokens, const PrefixScope& scope = {}) const;

  const Scheduler& scheduler() const noexcept { return scheduler_; }
  const BlockManager& block_manager() const noexcept { return block_manager_; }
  const AttentionBackend& backend() const noexcept { return *backend_; }
  // The cache of one layer, as it is stored.
  const KvCacheView& cache(int layer) const;
  std::int64_t cache_bytes() const noexcept;  // of all groups, host ends of swaps included
  void reset_prefix_cache() { block_manager_.reset_prefix_cache(); }

 private:
  struct Group;
  struct Layer;

  void add_group(const EngineOptions& options, const EngineGroup& group);
  void begin_step();
  StepResult finish_step(const ScheduledBatch& batch);
  void require_usable() const;
  void copy_blocks(std::span<const CopyStage> stages);
  void check_writes(const ScheduledBatch& batch);
  KvSource kv_source(const Layer& layer, const Qkv& input) const;
  void require_no_device_error();
  void undo_step() noexcept;

  std::unique_ptr<AttentionBackend> backend_;
  Stream stream_;
  BlockManager block_manager_;
  Scheduler scheduler_;
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  const ScheduledBatch* computing_ = nullptr;  // the batch under way
  std::size_t num_stages_run_ = 0;             // of its copies
  std::exception_ptr broken_by_;               // why there are no further steps; null: there are
};

}  // namespace quire
