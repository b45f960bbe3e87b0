// SPDX-License-Identifier: Apache-2.0
// The tables of `quire bench`, at most 100 columns wide.
#pragma once

#include "benchmark/result.h"

namespace quire::cli {

void print_report(const benchmark::Report& report);

}  // namespace quire::cli
