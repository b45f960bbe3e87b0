// SPDX-License-Identifier: Apache-2.0
// The keys or values of one sequence and kv head as dense rows, for libraries that know no blocks.
//
// Only what some query of the sequence may see is read: table entries of other blocks are not
// followed, and rows of other keys are zero. Values of 8-bit formats are multiplied by their scales
// here. Rows that hold an infinity or a NaN are zero too, and named: in a dense product they would
// reach every row, also those that must not see them. Host memory; no exceptions, no allocation.
// Different targets may be filled from different threads.
#pragma once

#include <chrono>
#include <cstdint>

#include "attention/mask.h"
#include "layout/kv_offset.h"
#include "quire/batch.h"
#include "quire/kv_cache.h"

namespace quire::dense {

// Where the keys of one sequence lie. REQUIRES: a host cache whose layout is not opaque.
struct GatherSource {
  const KvCacheView& cache;
  const BlockTables& tables;
  const Mask& mask;
  Alignment alignment;
  SequenceView sequence;
  std::int64_t s = 0;  // its index in the batch
  // first_old_key_seen() of a sequence with a tree mask; unused otherwise.
  std::int64_t first_old = 0;
};

GatherSource gather_source(const KvCacheView& cache, const BatchView& batch,
                           const AttentionSpec& spec, std::int64_t s) noexcept;

// May a query of the sequence see key j? If not, its table entry must not be followed.
// REQUIRES: j is in keys_seen() of some queries of the sequence.
bool may_read_key(const GatherSource& source, std::int64_t j) noexcept;

struct DenseRows {
  DType dtype = DType::kF32;  // f32, or that of the cache if it is not an 8-bit one
  void* data = nullptr;       // [num_rows, stride]
  std::int64_t num_rows = 0;  // at least as many as keys; those past them become zero
  std::int64_t stride = 0;    // elements; those past the dims of the tensor become zero
};

// Fills `rows` with K or V of `keys`. Returns how many of the rows were not finite; their indices
// go to `not_finite` ([num_rows]), in order. Without `not_finite` they are copied as they are, and
// the result is 0.
std::int64_t gather_rows(const GatherSource& source, KvTensor tensor, std::int64_t kv_head,
                         KeyRange keys, const DenseRows& rows, std::int32_t* not_finite) noexcept;

// Adds the time of its life to `seconds`, unless that is null.
class GatherTimer {
 public:
  explicit GatherTimer(double* seconds) noexcept : seconds_(seconds) {
    if (seconds_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~GatherTimer() {
    if (seconds_ == nullptr) return;
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  GatherTimer(const GatherTimer&) = delete;
  GatherTimer& operator=(const GatherTimer&) = delete;

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_;
};

// Key or value j alone, times its scale, to out [head_dim or value_dim]. REQUIRES: may_read_key.
void load_key(const GatherSource& source, KvTensor tensor, std::int64_t kv_head, std::int64_t j,
              float* out) noexcept;

}  // namespace quire::dense
