// SPDX-License-Identifier: Apache-2.0
// What a problem must give: attention in double precision, straight from the mathematics, and how
// far a backend may be from it.
//
// It shares no code with any backend, the reference one included: no block table, no layout, no
// mask predicate. A backend and the suite are wrong together only if both misread the contract.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/problem.h"

namespace quire::conformance {

// Follows from `plain`: QK and PV accumulated in f32, P rounded to the query dtype, divided by the
// f32 sum of unrounded P, rounded once. Bounds of |got - exact|:
struct Limits {
  double max = 0;   // over all outputs: twice that of plain, + slack
  double mean = 0;  // over all outputs: 1.5 times that of plain, + slack
  double lse = 0;   // times max(1, |lse|)
};

struct Expected {
  std::vector<double> out;  // [num_tokens, num_q_heads, value_dim]
  std::vector<double> lse;  // [num_tokens, num_q_heads], -inf: saw no key
  Limits limits;
};

Expected expect(const Problem& problem);

// Of 8-bit K and V that a backend rounds in a way of its own: exact is attention over the values
// before they were rounded, and plain over those that the contract stores. So a backend may lose
// what the format loses, in the same proportions.
Expected expect_own_rounding(const Problem& problem);

// One of the partial results that merge joins, dense.
struct PartialData {
  std::vector<float> out;  // [rows, heads, dim]
  std::vector<float> lse;  // [rows, heads]
};

struct MergeShape {
  std::int64_t rows = 0, heads = 0, dim = 0;
  DType out_dtype = DType::kF32;
};

// The same for merge: plain is the merge in f32, rounded once.
Expected expect_merge(const std::vector<PartialData>& partials, const std::vector<float>& sinks,
                      const MergeShape& shape);

// The slack of the limits, relative to the largest value, and the limit of lse.
double output_slack(DType q_dtype) noexcept;
double lse_limit(DType q_dtype) noexcept;

}  // namespace quire::conformance
