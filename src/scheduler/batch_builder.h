// SPDX-License-Identifier: Apache-2.0
// Fills a ScheduledBatch: sequences one by one, copies in stages, arrays at the end.
//
// The copies of a stage count as done as soon as they are taken: whoever runs the batch runs the
// stages in order and before everything else, on the stream on which all work on blocks runs. So
// the blocks that a swap gives back can be used in the same step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/block_manager.h"
#include "quire/scheduled_batch.h"
#include "scheduler/request_record.h"

namespace quire {

struct BatchLimits {
  std::int64_t max_tokens = 0;
  std::int64_t max_sequences = 0;
  std::int64_t max_cross_rows = 0;
};

class BatchBuilder {
 public:
  BatchBuilder(const BatchLimits& limits, std::size_t num_groups);

  void clear();
  std::int64_t num_tokens_left() const noexcept { return limits_.max_tokens - batch_.num_tokens(); }
  bool has_room_for_cross(std::int64_t num_rows) const noexcept {
    return batch_.num_cross_rows_ + num_rows <= limits_.max_cross_rows;
  }
  // The next num_tokens of a request, for which its sequence has slots.
  void add(const RequestRecord& request, std::int64_t num_tokens);
  void take_copies(BlockManager& manager);
  // Tables, slots and lengths of all groups.
  void finish(BlockManager& manager);

  const ScheduledBatch& batch() const noexcept { return batch_; }

 private:
  void write_group(const BlockManager& manager, int group);
  void point_at_copies();

  BatchLimits limits_;
  ScheduledBatch batch_;
};

}  // namespace quire
