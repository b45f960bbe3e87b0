// SPDX-License-Identifier: Apache-2.0
// The tables of `quire bench`, at most 100 columns wide.
#pragma once

#include <vector>

#include "benchmark/compare.h"
#include "benchmark/result.h"

namespace quire::cli {

void print_report(const benchmark::Report& report);
// The rows of docs/benchmarks.md.
void print_markdown(const benchmark::Report& report);
void print_comparisons(const std::vector<benchmark::Comparison>& comparisons, double margin);

}  // namespace quire::cli
