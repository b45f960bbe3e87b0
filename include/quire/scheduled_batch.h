// SPDX-License-Identifier: Apache-2.0
// The work of one step: which tokens of which requests, where their K and V go, and the block
// copies that come first.
//
// Owns the arrays that its views point into. The Scheduler fills the same batch again in the next
// schedule(), so that steps of sizes seen before allocate nothing; until then it does not change.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/batch.h"
#include "quire/block_manager.h"
#include "quire/export.h"
#include "quire/kv_ids.h"
#include "quire/request.h"

namespace quire {

// The part of one request: tokens [first_position, first_position + num_tokens) of its sequence in
// the rows [first_row, first_row + num_tokens) of Q, K, V and the outputs.
struct ScheduledSequence {
  RequestId request{};
  SequenceId sequence{};
  std::int64_t first_position = 0;
  std::int64_t first_row = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_drafts = 0;  // of num_tokens, the last ones: guesses that may be taken back
  // K and V of the encoder that layers of cross-attention store now, in the order of the sequences.
  std::int64_t num_cross_rows = 0;
  bool is_last_chunk = false;  // nothing of it is left to compute: its rows decide tokens
};

// Copies of one stage have no order; the stages have.
struct CopyStage {
  std::span<const GroupCopies> groups{};  // [num_groups]
};

class QUIRE_API ScheduledBatch {
 public:
  // Nothing to compute. There may still be copies, and results to report.
  bool empty() const noexcept { return sequences_.empty(); }
  std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t num_cross_rows() const noexcept { return num_cross_rows_; }

  std::span<const ScheduledSequence> sequences() const noexcept { return sequences_; }
  std::span<const Token> tokens() const noexcept { return tokens_; }               // [num_tokens]
  std::span<const std::int32_t> positions() const noexcept { return positions_; }  // [num_tokens]

  // To be run in this order before anything of the step is stored.
  std::span<const CopyStage> copies() const noexcept { return stages_; }
  // The batch as the layers of a group see it, in host memory. Throws if there is no such group.
  BatchView view(int group) const;

 private:
  friend class BatchBuilder;

  struct GroupArrays {
    std::vector<std::int32_t> kv_lens;       // [num_sequences]
    std::vector<std::int32_t> table_begins;  // [num_sequences + 1]
    std::vector<std::int32_t> indices;       // [table_begins.back()]
    std::vector<std::int64_t> slots;         // [num_new_kv_tokens]
  };

  std::vector<ScheduledSequence> sequences_;
  std::vector<SequenceId> ids_;  // of sequences_
  std::vector<Token> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> query_begins_;  // [num_sequences + 1]
  std::vector<GroupArrays> groups_;
  std::int64_t num_cross_rows_ = 0;
  // Copies of all stages in a row; stage, group and direction by their ends.
  std::vector<BlockCopy> copies_;
  std::vector<std::array<std::size_t, 4>> copy_ends_;  // [num_stages * num_groups]
  std::vector<GroupCopies> group_copies_;              // [num_stages * num_groups]
  std::vector<CopyStage> stages_;
};

}  // namespace quire
