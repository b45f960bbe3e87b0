// SPDX-License-Identifier: Apache-2.0
#include "cli/option_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>

namespace quire::cli {
namespace {

// All of `text`, or nothing.
template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string must_be(const std::string& what, const std::string& text) {
  return fmt::format("must be {}, is '{}'", what, text);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// How often 1024 is in the unit.
std::optional<int> power_of_unit(std::string_view unit) {
  if (unit.empty() || unit == "b") return 0;
  const std::size_t power = std::string_view("kmgtpe").find(unit.front());
  unit.remove_prefix(1);
  if (power == std::string_view::npos) return std::nullopt;
  if (unit.empty() || unit == "b" || unit == "i" || unit == "ib")
    return static_cast<int>(power) + 1;
  return std::nullopt;
}

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  const std::size_t num_digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string unit = text.substr(num_digits);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::optional<int> power = power_of_unit(unit);
  std::optional<std::int64_t> bytes =
      parse<std::int64_t>(std::string_view(text).substr(0, num_digits));
  for (int i = 0; bytes && power && i < *power; ++i) {
    if (*bytes > std::numeric_limits<std::int64_t>::max() / 1024) return std::nullopt;
    *bytes *= 1024;
  }
  return power ? bytes : std::nullopt;
}

}  // namespace

CLI::Validator whole_number(std::int64_t minimum, std::int64_t maximum) {
  return {[=](std::string& text) -> std::string {
            const auto value = parse<std::int64_t>(text);
            if (!value || *value < minimum || *value > maximum) {
              return must_be(fmt::format("a whole number between {} and {}", minimum, maximum),
                             text);
            }
            text = std::to_string(*value);
            return {};
          },
          ""};
}

CLI::Validator seed_number() {
  return {[](std::string& text) -> std::string {
            const auto value = parse<std::uint64_t>(text);
            if (!value) {
              return must_be(fmt::format("a whole number between 0 and {}",
                                         std::numeric_limits<std::uint64_t>::max()),
                             text);
            }
            text = std::to_string(*value);
            return {};
          },
          ""};
}

CLI::Validator real_number(double minimum, double maximum) {
  return {[=](std::string& text) -> std::string {
            const auto value = parse<double>(text);
            if (value && *value >= minimum && *value <= maximum) return {};
            return must_be(fmt::format("a number between {:g} and {:g}", minimum, maximum), text);
          },
          ""};
}

CLI::Validator byte_size() {
  return {[](std::string& text) -> std::string {
            const auto bytes = parse_bytes(text);
            if (!bytes || *bytes < 1) {
              return must_be(fmt::format("a size between 1 and {} bytes, as in 512MiB or 80GiB",
                                         std::numeric_limits<std::int64_t>::max()),
                             text);
            }
            text = std::to_string(*bytes);
            return {};
          },
          ""};
}

CLI::Validator name_of(std::string what) {
  return {[what = std::move(what)](std::string& text) -> std::string {
            return text.empty() ? "must be the name of " + what + ", is empty" : "";
          },
          ""};
}

CLI::Validator choice(std::vector<std::string> names, std::vector<int> values) {
  return {[names = std::move(names), values = std::move(values)](std::string& text) -> std::string {
            const auto found = std::ranges::find(names, text);
            if (found == names.end()) return must_be("one of " + joined(names), text);
            text = std::to_string(values[static_cast<std::size_t>(found - names.begin())]);
            return {};
          },
          ""};
}

}  // namespace quire::cli
