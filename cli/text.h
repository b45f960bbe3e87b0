// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, in a known width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

std::string grouped(std::int64_t value);  // 144,793,823
// 1 block, 2 blocks; the plural of `noun` has an s.
std::string counted(std::int64_t count, std::string_view noun);
std::string percent_text(std::int64_t part, std::int64_t whole);  // "38.2 %"
std::string bytes_text(std::int64_t bytes);                       // "125.1 GiB"
// At most 8 characters at any magnitude, as 0.00094, 7.515, 8, 123,456, 1.23e+09.
std::string number_text(double value);

// Lines of at most `width` characters: broken at blanks, else behind a comma, else anywhere.
std::vector<std::string> lines_of(std::string_view text, std::size_t width);
// A description of an option, in lines that fit beside its name.
std::string help_text(std::string_view text);

}  // namespace quire::cli
