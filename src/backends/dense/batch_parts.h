// SPDX-License-Identifier: Apache-2.0
// A batch cut into parts: some neighbouring queries of one sequence, which with a kv head make one
// item of work for a thread. The size of a part follows from its sequence alone, so that equal
// sequences are cut alike in every batch.
//
// The cut lives in memory of the workspace; nothing is allocated. Constant between calls of cut().
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/mask.h"
#include "quire/batch.h"

namespace quire::dense {

struct QueryPart {
  std::int64_t sequence = 0;
  std::int64_t begin = 0;  // queries [begin, end) of it
  std::int64_t end = 0;

  std::int64_t size() const noexcept { return end - begin; }
};

class BatchParts {
 public:
  static std::int64_t size_bytes(const BatchBounds& bounds) noexcept {
    return (2 * bounds.max_sequences + 1) * std::int64_t{sizeof(std::int64_t)};
  }
  // REQUIRES: `memory` has size_bytes(bounds) and stays alive.
  BatchParts(void* memory, const BatchBounds& bounds) noexcept
      : firsts_(static_cast<std::int64_t*>(memory)),
        part_sizes_(firsts_ + bounds.max_sequences + 1) {}

  // part_size(sequence view) is how many queries a part of that sequence holds, at least 1.
  template <class F>
  void cut(const BatchView& batch, F&& part_size) noexcept {
    num_sequences_ = batch.num_sequences();
    firsts_[0] = 0;
    for (std::int64_t s = 0; s < num_sequences_; ++s) {
      const SequenceView sequence = sequence_view(batch, s);
      part_sizes_[s] = part_size(sequence);
      const std::int64_t count = (sequence.q_len + part_sizes_[s] - 1) / part_sizes_[s];
      firsts_[s + 1] = firsts_[s] + count;
    }
  }

  std::int64_t size() const noexcept { return num_sequences_ == 0 ? 0 : firsts_[num_sequences_]; }

  // Sequence by sequence, queries in order. REQUIRES: 0 <= index < size(), the batch of cut().
  QueryPart at(const BatchView& batch, std::int64_t index) const noexcept {
    const std::int64_t* first = firsts_;
    const std::int64_t s = std::upper_bound(first, first + num_sequences_ + 1, index) - first - 1;
    const std::int64_t q_len = sequence_view(batch, s).q_len;
    const std::int64_t begin = (index - firsts_[s]) * part_sizes_[s];
    return {s, begin, std::min(begin + part_sizes_[s], q_len)};
  }

 private:
  std::int64_t* firsts_;      // [max_sequences + 1] of part indices
  std::int64_t* part_sizes_;  // [max_sequences] in queries
  std::int64_t num_sequences_ = 0;
};

}  // namespace quire::dense
