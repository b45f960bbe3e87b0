// SPDX-License-Identifier: Apache-2.0
// Checks of what stands behind a flag. Each sees the text as it was typed, so that nothing is
// rounded, wrapped around or cut off before it is looked at; its message says what would be right.
//
// They are for Option::transform: what they have read is passed on in the one form that has no
// second meaning (010 is ten).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire::cli {

// Digits, and a minus where the range has one: nothing else.
CLI::Validator whole_number(std::int64_t minimum, std::int64_t maximum);
CLI::Validator seed_number();  // from 0 to 2^64 - 1
// No infinity, no NaN.
CLI::Validator real_number(double minimum, double maximum);
// 512MiB becomes 536870912. K, KB and KiB are 1024, and so on up to E.
CLI::Validator byte_size();
CLI::Validator name_of(std::string what);  // "a file": anything but nothing

// One of `names`, which becomes its number among `values`.
CLI::Validator choice(std::vector<std::string> names, std::vector<int> values);

// One of the names of an enumeration.
template <class Enum>
CLI::Validator one_of(const std::vector<std::pair<std::string, Enum>>& entries) {
  std::vector<std::string> names;
  std::vector<int> values;
  for (const auto& [name, value] : entries) {
    names.push_back(name);
    values.push_back(static_cast<int>(value));
  }
  return choice(std::move(names), std::move(values));
}

}  // namespace quire::cli
