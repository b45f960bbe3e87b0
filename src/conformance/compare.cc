// SPDX-License-Identifier: Apache-2.0
#include "conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

// Sums errors in the order of the outputs and remembers the worst.
struct Worst {
  double max = -1;
  double sum = 0;
  std::int64_t index = 0;
  std::int64_t count = 0;

  void add(std::int64_t i, double error) {
    sum += error;
    ++count;
    if (error > max) {
      max = error;
      index = i;
    }
  }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::optional<std::string> compare_lse(const Expected& want, const OutputData& got,
                                       const ResultShape& shape, const RowNames& names,
                                       Accuracy& accuracy) {
  accuracy.lse_limit = want.limits.lse;
  for (std::size_t row = 0; row < got.lse.size(); ++row) {
    const double w = want.lse[row];
    const double g = got.lse[row];
    const bool both_empty = w == -kInfinity && g == -kInfinity;
    const double error = both_empty ? 0 : std::abs(g - w) / std::max(1.0, std::abs(w));
    if (!both_empty) accuracy.lse_error = std::max(accuracy.lse_error, error);
    if (both_empty || (std::isfinite(g) && error <= want.limits.lse)) continue;
    const auto index = static_cast<std::int64_t>(row);
    return concat("lse of ", names(index / shape.num_heads), " head ", index % shape.num_heads,
                  ": got ", g, ", want ", w, ", limit ",
                  want.limits.lse * std::max(1.0, std::abs(w)));
  }
  return std::nullopt;
}

std::string out_name(const ResultShape& shape, const RowNames& names, std::int64_t index) {
  const std::int64_t row = index / shape.dim;
  return concat("out of ", names(row / shape.num_heads), " head ", row % shape.num_heads, " dim ",
                index % shape.dim);
}

}  // namespace

std::string RowNames::operator()(std::int64_t token) const {
  if (problem_ == nullptr) return concat("row ", token);
  for (std::size_t s = 0; s < problem_->sequences.size(); ++s) {
    const ProblemSequence& sequence = problem_->sequences[s];
    const std::int64_t i = token - sequence.first_token;
    if (i < 0 || i >= sequence.q_len) continue;
    return concat("sequence ", s, " (q_len ", sequence.q_len, ", kv_len ", sequence.kv_len,
                  ") query ", i);
  }
  return concat("token ", token);
}

std::optional<std::string> compare(const Expected& want, const OutputData& got,
                                   const ResultShape& shape, const RowNames& names,
                                   Accuracy& accuracy) {
  accuracy.max_limit = want.limits.max;
  accuracy.mean_limit = want.limits.mean;
  Worst worst;
  for (std::size_t n = 0; n < want.out.size(); ++n) {
    const auto index = static_cast<std::int64_t>(n);
    const double g = got.out[n];
    const double error = std::abs(g - want.out[n]);
    const bool is_empty = want.lse[n / at(shape.dim)] == -kInfinity;
    if (std::isnan(error) || (is_empty && g != 0)) {
      return concat(out_name(shape, names, index), ": got ", g, ", want ", want.out[n],
                    is_empty ? " (sees no key)" : "");
    }
    worst.add(index, error);
  }
  if (worst.count > 0) {
    accuracy.max_error = worst.max;
    accuracy.mean_error = worst.sum / static_cast<double>(worst.count);
  }
  // Written so that a limit or a result that is no number fails.
  if (!(accuracy.max_error <= want.limits.max)) {
    const auto n = at(worst.index);
    return concat(out_name(shape, names, worst.index), ": got ", got.out[n], ", want ", want.out[n],
                  ", error ", worst.max, ", limit ", want.limits.max);
  }
  if (auto difference = compare_lse(want, got, shape, names, accuracy)) return difference;
  if (!(accuracy.mean_error <= want.limits.mean)) {
    return concat("mean error of out over ", worst.count, " outputs: ", accuracy.mean_error,
                  ", limit ", want.limits.mean);
  }
  return std::nullopt;
}

std::optional<std::string> compare_bits(const Problem& p,
                                        const std::vector<std::int64_t>& sequences,
                                        const OutputData& want, const OutputData& got) {
  const ResultShape shape{p.num_tokens, p.spec.num_q_heads, p.spec.value_dim};
  for (const std::int64_t s : sequences) {
    const std::int64_t first = p.sequences[at(s)].first_token * shape.num_heads;
    const std::int64_t end = first + p.sequences[at(s)].q_len * shape.num_heads;
    for (std::int64_t n = first * shape.dim; n < end * shape.dim; ++n) {
      if (want.out_bits[at(n)] == got.out_bits[at(n)]) continue;
      return concat(out_name(shape, RowNames(p), n), ": ", got.out[at(n)], ", was ",
                    want.out[at(n)]);
    }
    for (std::int64_t n = first; n < end && !want.lse_bits.empty(); ++n) {
      if (want.lse_bits[at(n)] == got.lse_bits[at(n)]) continue;
      return concat("lse of ", RowNames(p)(n / shape.num_heads), " head ", n % shape.num_heads,
                    ": ", got.lse[at(n)], ", was ", want.lse[at(n)]);
    }
  }
  return std::nullopt;
}

}  // namespace quire::conformance
