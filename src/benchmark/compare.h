// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: what became slower against its ceiling. Shares are compared, not times: a
// machine that is slower today is slower for the probes too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/result.h"

namespace quire::benchmark {

enum class Change : std::uint8_t {
  kSame,        // within the margin
  kFaster,      // share up by more than the margin
  kRegression,  // share down by more than the margin
  kLost,        // measured before, refused or failed now: a regression too
};

struct Comparison {
  std::string name;  // of the case
  std::string candidate;
  int threads = 0;
  Change change = Change::kSame;
  double old_share = 0;
  double new_share = 0;
  std::string reason;  // of kLost
};

// Of every case, candidate and number of threads that both runs hold and the old one measured, in
// the order of the new run. `margin` is relative: 0.1 is a tenth of the old share.
std::vector<Comparison> compare(const std::vector<Result>& before, const std::vector<Result>& after,
                                double margin);

bool is_regression(Change change) noexcept;
const char* change_name(Change change) noexcept;

}  // namespace quire::benchmark
