// SPDX-License-Identifier: Apache-2.0
// Small charts as inline SVG: lines or stacked areas over a common x, and bars over a logarithmic
// x.
//
// Colours are classes (s0, s1, ...) that the page defines for light and dark. Every chart has a
// title, a description, labels with units and, under the pointer, the values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::replay {

std::string escape_html(std::string_view text);
// Three significant digits, thousands as 12k or 3.4M.
std::string short_number(double value);

struct ChartSeries {
  std::string name;
  std::vector<double> values;  // [number of x]; NaN: none there
};

struct Chart {
  std::string id;  // of the element, unique in the page
  std::string title;
  std::string description;  // what to see, for those who do not see it
  std::string x_label;
  std::string y_label;
  std::vector<double> x;  // rising; bars: [number of values + 1] bounds
  std::vector<ChartSeries> series;
  double y_max = 0;  // 0: from the values
};

enum class ChartKind { kLines, kStacked, kBars };

// A <figure>. Without any value it says so.
std::string draw_chart(const Chart& chart, ChartKind kind);

}  // namespace quire::replay
