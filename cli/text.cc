// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace quire::cli {

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = text.front() == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

std::string percent_text(std::int64_t part, std::int64_t whole) {
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{:.1f} %", 100 * share);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kUnit = 1024;
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kUnit && unit + 1 < std::size(units)) {
    value /= kUnit;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, units[unit]);
}

std::string number_text(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-4 || size >= 1e6) return fmt::format("{:.2e}", value);
  if (value == std::floor(value) || size >= 1000) return grouped(std::llround(value));
  if (size < 0.01) return fmt::format("{:.5f}", value);
  if (size < 10) return fmt::format("{:.3f}", value);
  return fmt::format("{:.1f}", value);
}

std::vector<std::string> lines_of(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    std::size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end == 0) {
      end = text.rfind(',', width - 1);
      end = end == std::string_view::npos ? width : end + 1;
    }
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  lines.emplace_back(text);
  return lines;
}

std::string help_text(std::string_view text) {
  constexpr std::size_t kWidth = 69;  // 99 without the names
  std::string result;
  for (const std::string& line : lines_of(text, kWidth)) {
    result += (result.empty() ? "" : "\n") + line;
  }
  return result;
}

}  // namespace quire::cli
