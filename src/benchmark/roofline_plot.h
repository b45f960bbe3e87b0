// SPDX-License-Identifier: Apache-2.0
// The roofline plot of a report: operations per second over operations per byte of K and V, both
// logarithmic, below the bandwidth that rises from the left and the peaks that close it above.
#pragma once

#include <string>
#include <vector>

#include "benchmark/result.h"

namespace quire::benchmark {

// An SVG element. Points are the measured results on `ceilings.threads` threads whose data do not
// lie in caches; class `c0`, `c1`, ... colours the candidates in their order.
// REQUIRES: there is such a result with operations.
std::string roofline_svg(const CeilingValues& ceilings, const std::vector<const Result*>& results,
                         const std::vector<std::string>& candidates);

}  // namespace quire::benchmark
