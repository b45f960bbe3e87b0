// SPDX-License-Identifier: Apache-2.0
// Fills a ScheduledBatch: sequences one by one, copies in stages, arrays at the end.
//
// The copies of a stage count as done as soon as they are taken: whoever runs the batch runs the
// stages in order and before everything else, on the stream on which all work on blocks runs. So
// the blocks that a swap gives back can be used in the same step. For the same reason no stage may
// get lost: those that have not been run open the next batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

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

  // An empty batch, but for copies that have not been run.
  void clear() noexcept;
  // The first stages of copies have been run.
  void note_run(std::size_t num_stages) noexcept { num_stages_run_ = num_stages; }
  std::int64_t num_tokens_left() const noexcept { return limits_.max_tokens - batch_.num_tokens(); }
  bool has_room_for_cross(std::int64_t num_rows) const noexcept {
    return batch_.num_cross_rows_ + num_rows <= limits_.max_cross_rows;
  }
  // The next num_tokens of a request, for which its sequence has slots; the last num_drafts of them
  // are guesses. Does not throw.
  void add(const RequestRecord& request, std::int64_t num_tokens, std::int64_t num_drafts);
  // Those that wait become a stage. Strong guarantee.
  void take_copies(BlockManager& manager);
  // Tables, slots and lengths of all groups.
  void finish(BlockManager& manager);

  const ScheduledBatch& batch() const noexcept { return batch_; }

 private:
  void write_group(const BlockManager& manager, int group);
  void point_at_copies();
  void drop_stages(std::size_t num_stages) noexcept;
  void store_taken(BlockManager& manager);

  BatchLimits limits_;
  std::size_t num_stages_run_ = 0;
  std::optional<CopyLists> taken_;  // from the manager, and not stored yet
  ScheduledBatch batch_;
};

}  // namespace quire
