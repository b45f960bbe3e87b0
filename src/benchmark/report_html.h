// SPDX-License-Identifier: Apache-2.0
// A report as one HTML page without scripts or other files: a roofline plot for each number of
// threads, a bar for each case and candidate, light or dark as the reader's system is.
#pragma once

#include <string>

#include "benchmark/result.h"

namespace quire::benchmark {

std::string html_page(const Report& report);

// Of candidates; with more of them they begin again.
inline constexpr int kNumColours = 8;

// Text with the characters that HTML reserves replaced.
std::string escape_html(const std::string& text);

}  // namespace quire::benchmark
