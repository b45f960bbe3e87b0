// SPDX-License-Identifier: Apache-2.0
// Results against what they must be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/loaded_batch.h"
#include "conformance/oracle.h"

namespace quire::conformance {

// How far a result is from exact, and how far it may be.
struct Accuracy {
  double max_error = 0, max_limit = 0;
  double mean_error = 0, mean_limit = 0;
  double lse_error = 0, lse_limit = 0;  // relative to max(1, |lse|)
};

// Names a row of a result in messages: "sequence 2 query 0".
class RowNames {
 public:
  explicit RowNames(const Problem& problem) : problem_(&problem) {}
  RowNames() = default;
  std::string operator()(std::int64_t token) const;

 private:
  const Problem* problem_ = nullptr;
};

struct ResultShape {
  std::int64_t num_tokens = 0, num_heads = 0, dim = 0;
};

// Nothing, or the first violation. A row that sees no key must be exactly 0 and -inf; a NaN is
// never right. `lse` of the data may be empty.
std::optional<std::string> compare(const Expected& want, const OutputData& got,
                                   const ResultShape& shape, const RowNames& names,
                                   Accuracy& accuracy);

// Equal bits for every sequence of `sequences`.
std::optional<std::string> compare_bits(const Problem& problem,
                                        const std::vector<std::int64_t>& sequences,
                                        const OutputData& want, const OutputData& got);

}  // namespace quire::conformance
