// SPDX-License-Identifier: Apache-2.0
// Q, K and V of a model that does not exist: fixed functions of layer and of all tokens up to the
// one in question, as in a real model. So a block that is shared between prompts that differ
// anywhere before its end gives wrong outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/kv_ids.h"

namespace quire::replay {

enum class QkvTensor : std::uint64_t { kQ = 1, kK = 2, kV = 3 };

// The tokens of a request so far, each as a digest of it and all before it.
class TokenChain {
 public:
  void extend(std::span<const Token> tokens);
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(digests_.size()); }
  // REQUIRES: 0 <= position < size().
  std::uint64_t digest(std::int64_t position) const {
    return digests_[static_cast<std::size_t>(position)];
  }

 private:
  std::vector<std::uint64_t> digests_;
};

// Elements [count] of one row, in (-1.75, 1.75) with variance about 1.
void make_row(std::uint64_t digest, int layer, QkvTensor tensor, std::span<float> row);

// The same, rounded to the format of Q, K and V.
class RowWriter {
 public:
  explicit RowWriter(const AttentionSpec& spec);

  std::int64_t row_bytes(QkvTensor tensor) const noexcept;
  // Writes row_bytes(tensor).
  void write(std::uint64_t digest, int layer, QkvTensor tensor, void* out);

 private:
  std::int64_t num_elements(QkvTensor tensor) const noexcept;

  AttentionSpec spec_;
  std::vector<float> row_;
};

}  // namespace quire::replay
