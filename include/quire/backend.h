// SPDX-License-Identifier: Apache-2.0
// The one interface of every backend: prepare a ragged batch once per step, then append new K and V
// and attend once per layer.
//
//   auto backend = quire::make_backend("cpu");
//   const KvLayout layout = backend->preferred_layout(spec);
//   spec.kv.layout = layout.id;                                    // of the cache made with it
//   WorkspaceBuffer workspace(backend->memory(), backend->workspace(spec, bounds));
//   auto prepared = backend->make_prepared(spec, bounds, workspace.view());
//   backend->prepare(*prepared, batch);                            // per step
//   backend->append(*prepared, {k, v}, cache.layer(i));            // per layer
//   backend->attend(*prepared, params, q, cache.layer(i), {out});  // per layer
//
// The public calls check every precondition (src/attention/validate.h) and then call the protected
// virtual ones; a call that throws has written nothing. Nothing is allocated between make_prepared
// and its end. A backend may be used from several threads, a PreparedBatch from one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/batch.h"
#include "quire/device.h"
#include "quire/error.h"
#include "quire/export.h"
#include "quire/kv_cache.h"
#include "quire/prepared_batch.h"
#include "quire/tensor.h"

namespace quire {

struct BackendInfo {
  std::string name;
  std::string version;
  std::string isa;  // the level in use ("scalar", "sm_90"), or empty
  Device device;
  bool batch_invariant = false;  // equal sequences give equal bits in every batch
};

// Yes, or every reason why not.
struct [[nodiscard]] Support {
  std::vector<std::string> reasons;
  bool fused_append = false;  // K and V are stored by attend; append alone is refused
  // 8-bit K and V are rounded in a way of the backend's own, not as docs/numerics.md says: they
  // lose about as much, but their bits are not those of other backends.
  bool own_rounding = false;
  // Storing also overwrites the slots behind the last stored token in its block. They hold nothing,
  // unless sequences share a block and one is longer: copy it before the shorter one grows.
  bool clears_tails = false;

  bool ok() const noexcept { return reasons.empty(); }
};

// K [num_new_kv_tokens, num_kv_heads, head_dim] and V [.., value_dim], f32, f16 or bf16; with
// v_in_k no V.
struct NewKv {
  TensorView k;
  TensorView v;
};

// What attend reads: a cache (or ragged view), and optionally new K and V that it stores first.
// Every backend takes the second form; those with fused append take only that one.
struct KvSource {
  KvCacheView cache;
  NewKv new_kv;

  KvSource(const KvCacheView& cache_) : cache(cache_) {}  // NOLINT(google-explicit-constructor)
  KvSource(const KvCacheView& cache_, const NewKv& new_kv_) : cache(cache_), new_kv(new_kv_) {}
};

struct AttentionOutput {
  MutableTensorView out;  // [num_tokens, num_q_heads, value_dim], out_dtype
  MutableTensorView lse;  // [num_tokens, num_q_heads], f32; optional
};

// Attention over some of the keys: merge needs both.
struct Partial {
  TensorView out;  // [num_tokens, num_q_heads, value_dim], f32, f16 or bf16
  TensorView lse;  // [num_tokens, num_q_heads], f32, natural log, -inf: saw no key
};

class QUIRE_API AttentionBackend {
 public:
  virtual ~AttentionBackend();

  virtual BackendInfo info() const = 0;
  virtual DeviceMemory& memory() = 0;

  // Throws only if the spec contradicts itself.
  Support supports(const AttentionSpec& spec) const;
  // The layout in which this backend is fastest. Plain caches are taken too, unless supports() says
  // that this one is needed.
  virtual KvLayout preferred_layout(const AttentionSpec& spec) const;

  // Exact for these bounds; throws Error(kUnsupported) with every reason if the spec is refused.
  WorkspaceSize workspace(const AttentionSpec& spec, const BatchBounds& bounds) const;
  std::unique_ptr<PreparedBatch> make_prepared(const AttentionSpec& spec, const BatchBounds& bounds,
                                               const Workspace& workspace);

  // Validates, plans and uploads. On an error the prepared batch is unusable until the next
  // prepare.
  void prepare(PreparedBatch& prepared, const BatchView& batch, Stream stream = {});

  // Stores row i of new K and V at slot i. Touches no byte of another slot.
  void append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
              Stream stream = {});

  // Writes out (and lse) of every row that belongs to a sequence. What is written shares no element
  // with what is read, or else it is refused; tensors that only interleave are apart. Out may be q
  // itself: the same memory and strides, element for element.
  void attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
              const KvSource& source, const AttentionOutput& output, Stream stream = {});

  // Copies blocks of all layers, scales included, within a cache, across caches, and between host
  // and device (swap). Layouts must be equal, or both plain. A block may be source many times,
  // destination once, and in one cache never both.
  void copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                   std::span<const BlockCopy> copies, Stream stream = {});
  // Some tokens of one block: the copy-on-write of a partly filled block. Not for opaque layouts.
  void copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                   const BlockRegionCopy& copy, Stream stream = {});

  // Any layout of this backend to a plain one of equal dtype, and back. `copies` as above.
  void export_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> plain,
                     std::span<const BlockCopy> copies, Stream stream = {});
  void import_blocks(std::span<const KvCacheView> plain, std::span<const KvCacheView> dst,
                     std::span<const BlockCopy> copies, Stream stream = {});

  // Attention over the union of the disjoint key sets of the partials; sinks enter here, once.
  // `sinks` is [num_q_heads] or empty. The output shares no element with a partial.
  void merge(std::span<const Partial> partials, ArrayView<float> sinks,
             const AttentionOutput& output, Stream stream = {});

  // The first error of asynchronous work on this batch since the last poll; clears it.
  Status poll(PreparedBatch& prepared);

 protected:
  // The arguments have been validated against each other; none may throw for a reason that a caller
  // could have known before. `cache.device` and tensors lie where the backend computes.
  virtual void collect_reasons(const AttentionSpec& spec, Support& support) const = 0;
  virtual WorkspaceSize do_workspace(const AttentionSpec& spec,
                                     const BatchBounds& bounds) const = 0;
  virtual std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                          const BatchBounds& bounds,
                                                          const Workspace& workspace) = 0;
  virtual void do_prepare(PreparedBatch& prepared, Stream stream) = 0;
  virtual void do_append(const PreparedBatch& prepared, const NewKv& new_kv,
                         const KvCacheView& cache, Stream stream) = 0;
  virtual void do_attend(const PreparedBatch& prepared, const AttentionParams& params,
                         const TensorView& q, const KvSource& source, const AttentionOutput& output,
                         Stream stream) = 0;
  // With new K and V, for backends that also append on their own: one after the other.
  virtual void do_append_and_attend(const PreparedBatch& prepared, const AttentionParams& params,
                                    const TensorView& q, const KvSource& source,
                                    const AttentionOutput& output, Stream stream);
  virtual void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                        const AttentionOutput& output, Stream stream) = 0;
  virtual Status do_poll(PreparedBatch& prepared);
  // Layouts that quire knows are converted in passing: src and dst may differ in layout here.
  virtual void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                              std::span<const BlockCopy> copies, Stream stream) = 0;
  virtual void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                              const BlockRegionCopy& copy, Stream stream) = 0;

 private:
  void require_own(const PreparedBatch& prepared) const;
  void require_ready(const PreparedBatch& prepared) const;
};

}  // namespace quire
