// SPDX-License-Identifier: Apache-2.0
// A distribution given by some of its quantiles, as in "0:1,50:350,90:597,100:2000": half of all
// values are at most 350. Between two of them the logarithm is linear in the share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::replay {

struct Quantile {
  double percent = 0;
  double value = 0;
  friend bool operator==(const Quantile&, const Quantile&) = default;
};

class QuantileCurve {
 public:
  // Percents rise from 0 to 100, values are positive and do not fall; throws naming the quantile.
  explicit QuantileCurve(std::vector<Quantile> quantiles);
  // The text above, or one number: always this. `what` names it in messages.
  static QuantileCurve parse(std::string_view what, std::string_view text);

  // REQUIRES: 0 <= share <= 1.
  double at(double share) const;
  std::string to_string() const;

 private:
  std::vector<Quantile> quantiles_;
};

}  // namespace quire::replay
