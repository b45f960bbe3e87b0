// SPDX-License-Identifier: Apache-2.0
// What backends over dense libraries share: the threads that quire starts or the caller brings,
// append and merge. They read every layout that quire knows and prefer the plain one, whose blocks
// they can copy whole.
#pragma once

#include <memory>
#include <span>

#include "backends/host_backend.h"
#include "base/thread_pool.h"
#include "quire/registry.h"

namespace quire::dense {

class DenseBackend : public HostBackend {
 protected:
  // Throws as make_backend does for options that contradict each other.
  explicit DenseBackend(const BackendOptions& options);

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override;
  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override;

  ThreadPool& pool() noexcept { return *pool_; }
  int num_threads() const noexcept { return pool_->num_threads(); }

 private:
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace quire::dense
