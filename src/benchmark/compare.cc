// SPDX-License-Identifier: Apache-2.0
#include "benchmark/compare.h"

#include <map>
#include <tuple>

namespace quire::benchmark {
namespace {

using Key = std::tuple<std::string, std::string, int>;

Key key_of(const Result& result) {
  return {result.name, result.candidate(), result.threads};
}

Change change_of(const Result& before, const Result& after, double margin) {
  if (!after.measured()) return Change::kLost;
  if (after.share_of_ceiling < before.share_of_ceiling * (1 - margin)) return Change::kRegression;
  if (after.share_of_ceiling > before.share_of_ceiling * (1 + margin)) return Change::kFaster;
  return Change::kSame;
}

}  // namespace

std::vector<Comparison> compare(const std::vector<Result>& before, const std::vector<Result>& after,
                                double margin) {
  std::map<Key, const Result*> old_results;
  for (const Result& result : before) {
    if (result.measured()) old_results[key_of(result)] = &result;
  }
  std::vector<Comparison> comparisons;
  for (const Result& result : after) {
    const auto found = old_results.find(key_of(result));
    if (found == old_results.end()) continue;
    comparisons.push_back({.name = result.name,
                           .candidate = result.candidate(),
                           .threads = result.threads,
                           .change = change_of(*found->second, result, margin),
                           .old_share = found->second->share_of_ceiling,
                           .new_share = result.share_of_ceiling,
                           .reason = result.reason});
  }
  return comparisons;
}

bool is_regression(Change change) noexcept {
  return change == Change::kRegression || change == Change::kLost;
}

const char* change_name(Change change) noexcept {
  switch (change) {
    case Change::kSame:
      return "same";
    case Change::kFaster:
      return "faster";
    case Change::kRegression:
      return "regression";
    case Change::kLost:
      return "lost";
  }
  return "?";
}

}  // namespace quire::benchmark
