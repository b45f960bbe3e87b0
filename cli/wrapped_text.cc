// SPDX-License-Identifier: Apache-2.0
#include "cli/wrapped_text.h"

#include <fmt/core.h>

#include <sstream>

namespace quire::cli {

void print_wrapped(const std::string& text, std::size_t indent) {
  constexpr std::size_t kColumns = 100;
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kColumns) {
      fmt::print("{:{}}{}\n", "", indent, line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  fmt::print("{:{}}{}\n", "", indent, line);
}

}  // namespace quire::cli
