// SPDX-License-Identifier: Apache-2.0
// What a benchmark needs of a backend over a dense library, so that the gathering of K and V can be
// told apart. On a device: to gather and to attend over what was gathered, each by itself. On the
// host, where the two alternate within a call: how long threads gathered. A backend derives from
// the one that it has; who measures it asks by dynamic_cast.
//
// Thread safety: that of the backend, but for what GatherClock says.
#pragma once

#include <memory>

#include "quire/backend.h"

namespace quire {

// K and V of one layer and one prepared batch, in memory of their own.
class GatheredKv {
 public:
  virtual ~GatheredKv() = default;
};

class DenseStages {
 public:
  virtual ~DenseStages() = default;

  // Memory for what `prepared` needs of a layer, for as long as that batch stays prepared. Throws
  // Error(kOutOfMemory).
  virtual std::unique_ptr<GatheredKv> make_gathered(const PreparedBatch& prepared) = 0;
  // Enqueues the gathering of K and V of a layer.
  virtual void gather(const PreparedBatch& prepared, const KvCacheView& cache, GatheredKv& gathered,
                      Stream stream) = 0;
  // Enqueues attention over them: attend of the backend without the gathering, and without its
  // checks.
  virtual void attend_gathered(const PreparedBatch& prepared, const AttentionParams& params,
                               const TensorView& q, const GatheredKv& gathered,
                               const AttentionOutput& output, Stream stream) = 0;
};

class GatherClock {
 public:
  virtual ~GatherClock() = default;

  // Starts at 0, or stops. REQUIRES: one thread at a time calls the backend while it runs.
  virtual void time_gather(bool on) = 0;
  // Of the calls since the last start, by the thread that gathered longest.
  virtual double gather_seconds() const = 0;
};

}  // namespace quire
