// SPDX-License-Identifier: Apache-2.0
// The few numbers that a series of measurements comes to.
#pragma once

#include <vector>

namespace quire::benchmark {

// REQUIRES: not empty. Of an even count the mean of the two in the middle.
double median(std::vector<double> values);
double smallest(const std::vector<double>& values);

// median(a[i] / b[i]): what was slow for a moment was slow for both, so the ratio stays.
// REQUIRES: equal sizes, not empty.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

// Half the distance of the quartiles, as a share of the median: how far to trust it.
double relative_spread(std::vector<double> values);

}  // namespace quire::benchmark
