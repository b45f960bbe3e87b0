// SPDX-License-Identifier: Apache-2.0
#include "replay/quantile_curve.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace quire::replay {
namespace {

double parse_number(std::string_view what, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(), what, ": '", text,
          "' is not a number");
  return value;
}

}  // namespace

QuantileCurve::QuantileCurve(std::vector<Quantile> quantiles) : quantiles_(std::move(quantiles)) {
  require(
      quantiles_.size() >= 2 && quantiles_.front().percent == 0 && quantiles_.back().percent == 100,
      "quantiles must begin at 0 and end at 100 percent");
  for (std::size_t i = 0; i < quantiles_.size(); ++i) {
    const auto [percent, value] = quantiles_[i];
    require(std::isfinite(percent) && std::isfinite(value) && value > 0, "quantile ", percent, ":",
            value, ": must be a positive number");
    if (i == 0) continue;
    require(percent > quantiles_[i - 1].percent && value >= quantiles_[i - 1].value, "quantile ",
            percent, ":", value, ": percents must rise and values must not fall, after ",
            quantiles_[i - 1].percent, ":", quantiles_[i - 1].value);
  }
}

QuantileCurve QuantileCurve::parse(std::string_view what, std::string_view text) {
  std::vector<Quantile> quantiles;
  const bool is_number = text.find(':') == std::string_view::npos;
  if (is_number) {
    const double value = parse_number(what, text);
    quantiles = {{.percent = 0, .value = value}, {.percent = 100, .value = value}};
  }
  for (bool has_more = !is_number; has_more;) {
    const std::size_t comma = text.find(',');
    has_more = comma != std::string_view::npos;
    const std::string_view item = text.substr(0, comma);
    const std::size_t colon = item.find(':');
    require(colon != std::string_view::npos, what, ": '", item, "' is not PERCENT:VALUE");
    quantiles.push_back({.percent = parse_number(what, item.substr(0, colon)),
                         .value = parse_number(what, item.substr(colon + 1))});
    if (has_more) text.remove_prefix(comma + 1);
  }
  try {
    return QuantileCurve(std::move(quantiles));
  } catch (const Error& error) {
    fail(error.code(), what, ": ", error.what());
  }
}

double QuantileCurve::at(double share) const {
  const double percent = share * 100;
  const auto above = std::ranges::lower_bound(quantiles_, percent, {}, &Quantile::percent);
  if (above == quantiles_.begin()) return above->value;
  if (above == quantiles_.end()) return quantiles_.back().value;
  const Quantile& low = *std::prev(above);
  const double part = (percent - low.percent) / (above->percent - low.percent);
  return low.value * std::pow(above->value / low.value, part);
}

std::string QuantileCurve::to_string() const {
  std::string text;
  for (const auto [percent, value] : quantiles_) {
    text += concat(text.empty() ? "" : ",", percent, ":", value);
  }
  return text;
}

}  // namespace quire::replay
