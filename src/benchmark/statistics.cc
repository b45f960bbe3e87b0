// SPDX-License-Identifier: Apache-2.0
#include "benchmark/statistics.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace quire::benchmark {

double median(std::vector<double> values) {
  QUIRE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double smallest(const std::vector<double>& values) {
  QUIRE_CHECK(!values.empty());
  return *std::min_element(values.begin(), values.end());
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  QUIRE_CHECK(a.size() == b.size());
  std::vector<double> ratios;
  ratios.reserve(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

double relative_spread(std::vector<double> values) {
  QUIRE_CHECK(!values.empty());
  const double middle = median(values);
  std::sort(values.begin(), values.end());
  const std::size_t last = values.size() - 1;
  const double quartiles = values[last - last / 4] - values[last / 4];
  return middle > 0 ? quartiles / 2 / middle : 0;
}

}  // namespace quire::benchmark
