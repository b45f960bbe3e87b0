// SPDX-License-Identifier: Apache-2.0
// A case in the memory of one backend, ready to be called again and again. The caller takes the
// time. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/bench_case.h"
#include "benchmark/rotating_cache.h"
#include "conformance/arrangement.h"
#include "conformance/batch_arrays.h"
#include "conformance/problem.h"
#include "quire/backend.h"
#include "registry/dense_stages.h"

namespace quire::benchmark {

// Shapes and places of a case: no values. Blocks that no row sees take no memory: they stand for
// what a server has released.
conformance::Problem bench_outline(const BenchCase& c);

class LoadedCase {
 public:
  struct Options {
    Stream stream;                    // of all calls
    bool metadata_on_device = false;  // so that prepare can be recorded
    // Attend works on K and V that were gathered before, if the backend has stages.
    bool gathered = false;
  };

  // All must outlive it. `spec` has the layout of the cache.
  LoadedCase(AttentionBackend& backend, const BenchCase& c, const conformance::Problem& outline,
             const conformance::Arrangement& arrangement, const AttentionSpec& spec,
             RotatingCache& cache, const Options& options);

  // One operation on the next layer. Throws what the backend throws.
  void enqueue();
  // The same; returns when it is done.
  void call();
  // The part of a step that all layers share: validates and plans. Not for copies.
  void prepare();
  // Whether attend works on gathered K and V; then enqueue_gather() gathers those of the next layer
  // again, into the same memory.
  bool is_gathered() const noexcept { return !gathered_.empty(); }
  void enqueue_gather();
  // The next operation is on the first layer.
  void rewind() noexcept;
  // Throws what a device found wrong with the batch by now.
  void raise_faults();

  // What make_prepared and the first prepare took: models and primitives are made there.
  double first_prepare_seconds() const noexcept { return first_prepare_seconds_; }

  // Whether every output is a finite number: a guard against measuring nonsense.
  bool output_is_finite() const;

 private:
  void append(const KvCacheView& cache, const NewKv& new_kv);
  void attend(const KvCacheView& cache, const NewKv& new_kv);
  NewKv next_new_kv();
  void gather_all();

  AttentionBackend& backend_;
  const BenchCase& case_;
  Options options_;
  AttentionSpec spec_;
  RotatingCache& cache_;
  AttentionParams params_;
  bool fused_append_ = false;
  std::unique_ptr<conformance::BatchArrays> arrays_;
  std::vector<Allocation> tensors_;
  TensorView q_;
  MutableTensorView out_;
  std::vector<NewKv> new_kv_;  // one for each layer where append is what is measured
  std::size_t next_new_kv_ = 0;
  std::unique_ptr<WorkspaceBuffer> workspace_;
  std::unique_ptr<PreparedBatch> prepared_;
  DenseStages* stages_ = nullptr;                      // of the backend, if they are used
  std::vector<std::unique_ptr<GatheredKv>> gathered_;  // by layer
  std::size_t next_gathered_ = 0;
  double first_prepare_seconds_ = 0;
  std::vector<BlockCopy> copies_;
  std::unique_ptr<KvCache> host_cache_;  // the other end of a swap
};

}  // namespace quire::benchmark
