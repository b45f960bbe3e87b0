// SPDX-License-Identifier: Apache-2.0
#include "conformance/oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "conformance/index.h"

namespace quire::conformance {
namespace {

// Keys, or dims, that one step works on: small arrays of fixed size become vector registers without
// reordering any sum.
constexpr std::int64_t kLanes = 8;

std::int64_t round_up(std::int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// K and V of one sequence and kv head, decoded. Real is double (exact) or float (plain).
template <class Real>
struct DenseKv {
  std::vector<Real> k;  // [kv_len / kLanes, head_dim, kLanes]
  std::vector<Real> v;  // [kv_len, round_up(value_dim)]
};

enum class Values : std::uint8_t { kStored, kSource };

template <class Real>
DenseKv<Real> gather(const Problem& p, std::int64_t s, std::int64_t kv_head, Values values) {
  const auto value = [values](const ProblemKv& kv, std::int64_t row, std::int64_t d) {
    const std::size_t index = at(row * kv.dim + d);
    if (values == Values::kSource) return static_cast<Real>(kv.source[index]);
    return static_cast<Real>(kv.stored[index]) * static_cast<Real>(kv.scales[at(row)]);
  };
  const std::int64_t kv_len = p.sequences[at(s)].kv_len;
  const std::int64_t v_stride = round_up(p.spec.value_dim);
  DenseKv<Real> dense;
  dense.k.resize(at(round_up(kv_len) * p.spec.head_dim));
  dense.v.resize(at(kv_len * v_stride));
  for (std::int64_t j = 0; j < kv_len; ++j) {
    const std::int64_t row = p.slot(s, j) * p.spec.num_kv_heads + kv_head;
    Real* k = dense.k.data() + j / kLanes * kLanes * p.spec.head_dim + j % kLanes;
    for (std::int64_t d = 0; d < p.k.dim; ++d) k[d * kLanes] = value(p.k, row, d);
    for (std::int64_t d = 0; d < p.v.dim; ++d) dense.v[at(j * v_stride + d)] = value(p.v, row, d);
  }
  return dense;
}

// One row of the result.
template <class Real>
struct Row {
  std::vector<Real> q;        // [head_dim]
  std::vector<Real> out;      // [round_up(value_dim)]
  std::vector<Real> weights;  // one per visible key: S, then P
  Real lse = 0;
};

// weights[n] = q . k of keys[n].
template <class Real>
void multiply_keys(const DenseKv<Real>& dense, std::span<const std::int32_t> keys, Row<Real>& row) {
  const auto head_dim = static_cast<std::int64_t>(row.q.size());
  std::array<Real, kLanes> dots{};
  std::int64_t group = -1;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    if (keys[n] / kLanes != group) {
      group = keys[n] / kLanes;
      dots.fill(0);
      const Real* k = dense.k.data() + group * kLanes * head_dim;
      for (std::int64_t d = 0; d < head_dim; ++d, k += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) dots[lane] += row.q[at(d)] * k[lane];
      }
    }
    row.weights[n] = dots[at(keys[n] % kLanes)];
  }
}

// out = sum of weights[n] * v of keys[n].
template <class Real>
void multiply_values(const DenseKv<Real>& dense, std::span<const std::int32_t> keys,
                     Row<Real>& row) {
  const auto stride = static_cast<std::int64_t>(row.out.size());
  for (std::int64_t first = 0; first < stride; first += kLanes) {
    std::array<Real, kLanes> sums{};
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const Real* v = dense.v.data() + keys[n] * stride + first;
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += row.weights[n] * v[lane];
    }
    std::copy(sums.begin(), sums.end(), row.out.begin() + first);
  }
}

struct RowIndex {
  std::int64_t s, i, head;
};

// S from q . k.
template <class Real>
Real score(const Problem& p, const RowIndex& at_row, std::int64_t j, Real dot) {
  Real x = static_cast<Real>(p.scale) * dot;
  const auto cap = static_cast<Real>(p.softcap);
  if (cap > 0) x = cap * std::tanh(x / cap);
  if (!p.alibi_slopes.empty()) {
    const ProblemSequence& sequence = p.sequences[at(at_row.s)];
    const std::int64_t distance = sequence.query_position(at_row.i) - sequence.key_position(j);
    x -= static_cast<Real>(p.alibi_slopes[at(at_row.head)]) * static_cast<Real>(std::abs(distance));
  }
  if (p.bias.present()) {
    x += static_cast<Real>(p.bias.values[at(p.bias.index(at_row.s, at_row.head, at_row.i, j))]);
  }
  return x;
}

// Rounds P in `plain` alone.
double weight_of(const Problem&, double p) {
  return p;
}
float weight_of(const Problem& problem, float p) {
  return round_to(problem.spec.q_dtype, p);
}

template <class Real>
Real sink_factor(const std::vector<float>& sinks, std::int64_t head, Real lse) {
  if (sinks.empty()) return 1;
  return 1 / (1 + std::exp(static_cast<Real>(sinks[at(head)]) - lse));
}

template <class Real>
void attend_row(const Problem& p, const DenseKv<Real>& dense, const RowIndex& at_row,
                std::span<const std::int32_t> keys, Row<Real>& row) {
  row.weights.resize(keys.size());
  multiply_keys(dense, keys, row);
  Real max = -std::numeric_limits<Real>::infinity();
  for (std::size_t n = 0; n < keys.size(); ++n) {
    row.weights[n] = score(p, at_row, keys[n], row.weights[n]);
    max = std::max(max, row.weights[n]);
  }
  Real sum = 0;
  for (Real& weight : row.weights) {
    const Real exact = std::exp(weight - max);
    sum += exact;
    weight = weight_of(p, exact);
  }
  multiply_values(dense, keys, row);
  row.lse = keys.empty() ? max : max + std::log(sum);
  const Real factor = keys.empty() ? 0 : sink_factor(p.sinks, at_row.head, row.lse);
  for (Real& x : row.out) x = keys.empty() ? 0 : x / sum * factor;
}

struct ErrorSum {
  double max = 0, sum = 0;
  std::int64_t count = 0;

  void add(double error) {
    max = std::max(max, error);
    sum += error;
    ++count;
  }
  Limits limits(double slack, double lse) const {
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    return {.max = 2 * max + slack, .mean = 1.5 * mean + slack, .lse = lse};
  }
};

// What one head of one query may see: masks for the row, bias for the head.
void keep_unhidden(const Problem& p, const RowIndex& at_row, std::span<const std::int32_t> visible,
                   std::vector<std::int32_t>& keys) {
  keys.assign(visible.begin(), visible.end());
  if (!p.bias.present()) return;
  std::erase_if(keys, [&](std::int32_t j) {
    return p.bias.values[at(p.bias.index(at_row.s, at_row.head, at_row.i, j))] ==
           -std::numeric_limits<float>::infinity();
  });
}

// All rows of the heads that read one kv head of one sequence, exact and plain.
void expect_group(const Problem& p, std::int64_t s, std::int64_t kv_head,
                  const std::vector<std::vector<std::int32_t>>& visible, Values values,
                  Expected& expected, ErrorSum& errors) {
  const AttentionSpec& spec = p.spec;
  const ProblemSequence& sequence = p.sequences[at(s)];
  const DenseKv<double> exact_kv = gather<double>(p, s, kv_head, values);
  const DenseKv<float> plain_kv = gather<float>(p, s, kv_head, Values::kStored);
  Row<double> exact{.q = std::vector<double>(at(spec.head_dim)),
                    .out = std::vector<double>(at(round_up(spec.value_dim))),
                    .weights = {}};
  Row<float> plain{.q = std::vector<float>(at(spec.head_dim)),
                   .out = std::vector<float>(at(round_up(spec.value_dim))),
                   .weights = {}};
  std::vector<std::int32_t> keys;
  for (std::int64_t i = 0; i < sequence.q_len; ++i) {
    for (std::int64_t g = 0; g < spec.head_group(); ++g) {
      const RowIndex at_row{s, i, kv_head * spec.head_group() + g};
      const std::int64_t row = (sequence.first_token + i) * spec.num_q_heads + at_row.head;
      const float* q = p.q.data() + row * spec.head_dim;
      std::copy_n(q, spec.head_dim, exact.q.begin());
      std::copy_n(q, spec.head_dim, plain.q.begin());
      keep_unhidden(p, at_row, visible[at(i)], keys);
      attend_row(p, exact_kv, at_row, keys, exact);
      attend_row(p, plain_kv, at_row, keys, plain);
      expected.lse[at(row)] = exact.lse;
      for (std::int64_t d = 0; d < spec.value_dim; ++d) {
        expected.out[at(row * spec.value_dim + d)] = exact.out[at(d)];
        errors.add(std::abs(round_to(spec.out_dtype, plain.out[at(d)]) - exact.out[at(d)]));
      }
    }
  }
}

template <class Real>
void merge_row(const std::vector<PartialData>& partials, const std::vector<float>& sinks,
               const MergeShape& shape, std::int64_t row, Row<Real>& result) {
  const Real infinity = std::numeric_limits<Real>::infinity();
  const auto lse = [&](const PartialData& partial) {
    return static_cast<Real>(partial.lse[at(row)]);
  };
  Real max = -infinity;
  for (const PartialData& partial : partials) max = std::max(max, lse(partial));
  std::fill(result.out.begin(), result.out.end(), Real{0});
  Real sum = 0;
  for (const PartialData& partial : partials) {
    if (lse(partial) == -infinity) continue;
    const Real weight = std::exp(lse(partial) - max);
    sum += weight;
    for (std::int64_t d = 0; d < shape.dim; ++d) {
      result.out[at(d)] += weight * static_cast<Real>(partial.out[at(row * shape.dim + d)]);
    }
  }
  result.lse = sum == 0 ? max : max + std::log(sum);
  if (sum == 0) return;
  const Real factor = sink_factor(sinks, row % shape.heads, result.lse) / sum;
  for (Real& x : result.out) x *= factor;
}

Expected expect_values(const Problem& p, Values values) {
  const std::int64_t rows = p.num_tokens * p.spec.num_q_heads;
  Expected expected;
  expected.lse.resize(at(rows));
  expected.out.resize(at(rows * p.spec.value_dim));
  ErrorSum errors;
  for (std::int64_t s = 0; s < std::ssize(p.sequences); ++s) {
    const ProblemSequence& sequence = p.sequences[at(s)];
    std::vector<std::vector<std::int32_t>> visible(at(sequence.q_len));
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        if (p.is_visible(s, i, j)) visible[at(i)].push_back(static_cast<std::int32_t>(j));
      }
    }
    for (std::int64_t kv_head = 0; kv_head < p.spec.num_kv_heads; ++kv_head) {
      expect_group(p, s, kv_head, visible, values, expected, errors);
    }
  }
  expected.limits =
      errors.limits(output_slack(p.spec.q_dtype) * p.v.max_magnitude, lse_limit(p.spec.q_dtype));
  return expected;
}

}  // namespace

double output_slack(DType q_dtype) noexcept {
  return q_dtype == DType::kF32 ? 1e-6 : 1e-4;
}

double lse_limit(DType q_dtype) noexcept {
  return q_dtype == DType::kF32 ? 1e-5 : 1e-3;
}

Expected expect(const Problem& p) {
  return expect_values(p, Values::kStored);
}

Expected expect_own_rounding(const Problem& p) {
  return expect_values(p, Values::kSource);
}

Expected expect_merge(const std::vector<PartialData>& partials, const std::vector<float>& sinks,
                      const MergeShape& shape) {
  Expected expected;
  ErrorSum errors;
  double max_magnitude = 0;
  for (const PartialData& partial : partials) {
    for (const float x : partial.out) max_magnitude = std::max(max_magnitude, std::abs(double{x}));
  }
  Row<double> exact{.q = {}, .out = std::vector<double>(at(shape.dim)), .weights = {}};
  Row<float> plain{.q = {}, .out = std::vector<float>(at(shape.dim)), .weights = {}};
  for (std::int64_t row = 0; row < shape.rows * shape.heads; ++row) {
    merge_row(partials, sinks, shape, row, exact);
    merge_row(partials, sinks, shape, row, plain);
    expected.lse.push_back(exact.lse);
    for (std::int64_t d = 0; d < shape.dim; ++d) {
      expected.out.push_back(exact.out[at(d)]);
      errors.add(std::abs(round_to(shape.out_dtype, plain.out[at(d)]) - exact.out[at(d)]));
    }
  }
  expected.limits =
      errors.limits(output_slack(shape.out_dtype) * max_magnitude, lse_limit(shape.out_dtype));
  return expected;
}

}  // namespace quire::conformance
