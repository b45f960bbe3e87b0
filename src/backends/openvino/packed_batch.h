// SPDX-License-Identifier: Apache-2.0
// A batch as the operation wants it: only sequences with queries, their rows without gaps, keys
// from the first block on that some row sees, and the metadata of to_openvino over that.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/batch.h"
#include "quire/batch_convert.h"

namespace quire::openvino {

class PackedBatch {
 public:
  // Later calls of fill within the bounds allocate nothing.
  void reserve(const BatchBounds& bounds);

  // Throws Error(kInvalidArgument) for what the operation cannot express: q_len > kv_len, and new
  // K and V that are not those of the queries in their order. REQUIRES: a validated host batch.
  void fill(const AttentionSpec& spec, const BatchView& batch);

  std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(q_rows_.size()); }
  const OpenVinoMetadata& metadata() const noexcept { return metadata_; }
  // The row of Q and out, and of new K and V, of each packed token.
  const std::vector<std::int64_t>& q_rows() const noexcept { return q_rows_; }
  const std::vector<std::int64_t>& kv_rows() const noexcept { return kv_rows_; }
  // Whether row i is token i.
  bool q_in_place() const noexcept { return q_in_place_; }
  bool kv_in_place() const noexcept { return kv_in_place_; }

 private:
  void add_sequence(const AttentionSpec& spec, const BatchView& batch, std::int64_t s);

  std::vector<std::int64_t> q_rows_;
  std::vector<std::int64_t> kv_rows_;
  std::vector<std::int32_t> offsets_;
  std::vector<std::int32_t> kv_lens_;
  std::vector<std::int32_t> table_begins_;
  std::vector<std::int32_t> table_;
  std::vector<std::int64_t> slots_;
  bool q_in_place_ = true;
  bool kv_in_place_ = true;
  BatchStorage storage_;
  OpenVinoMetadata metadata_;
};

}  // namespace quire::openvino
