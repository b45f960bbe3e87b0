// SPDX-License-Identifier: Apache-2.0
#include "benchmark/roofline_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "benchmark/report_html.h"

namespace quire::benchmark {
namespace {

constexpr double kGiga = 1e9;
constexpr double kWidth = 860, kHeight = 420;
constexpr double kLeft = 70, kRight = 150, kTop = 16, kBottom = 48;

// One logarithmic axis in whole steps of its base.
struct Axis {
  double low = 0, high = 1;  // logarithms
  double from = 0, to = 1;   // pixels

  double at(double log_value) const {
    return from + (log_value - low) / (high - low) * (to - from);
  }
};

double intensity(const Result& result) {
  return result.flops / result.bytes;
}

class Plot {
 public:
  Plot(const CeilingValues& ceilings, const std::vector<const Result*>& results)
      : ceilings_(ceilings), results_(results) {
    double min_x = 1, max_x = 1, min_y = 1e300, max_y = 1;
    for (const auto& [name, rate] : ceilings.flops_per_second) {
      max_y = std::max(max_y, rate);
      max_x = std::max(max_x, rate / ceilings.read_bytes_per_second);
    }
    for (const Result* result : results) {
      min_x = std::min(min_x, intensity(*result));
      max_x = std::max(max_x, intensity(*result));
      min_y = std::min(min_y, result->flops_per_second);
      max_y = std::max(max_y, result->flops_per_second);
    }
    x_ = {std::floor(std::log2(min_x)) - 1, std::ceil(std::log2(max_x)) + 1, kLeft,
          kWidth - kRight};
    y_ = {std::floor(std::log10(min_y)), std::ceil(std::log10(max_y * 1.2)), kHeight - kBottom,
          kTop};
  }

  std::string svg(const std::vector<std::string>& candidates) {
    text_ =
        fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Roofline plot, {}\">\n",
                    kWidth, kHeight, escape_html(ceilings_.place()));
    draw_grid();
    draw_roofs();
    draw_points(candidates);
    text_ += "</svg>\n";
    return text_;
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void draw_grid() {
    const double stride = x_.high - x_.low > 12 ? 2 : 1;
    for (double x = x_.low; x <= x_.high; x += stride) {
      add("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>\n", x_.at(x),
          kTop, kHeight - kBottom);
      add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", x_.at(x),
          kHeight - kBottom + 16, std::exp2(x));
    }
    for (double y = y_.low; y <= y_.high; ++y) {
      add("<line class=\"grid\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/>\n", kLeft,
          kWidth - kRight, y_.at(y));
      add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kLeft - 8, y_.at(y) + 4,
          std::pow(10, y) / kGiga);
    }
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">FLOP per byte of K and V</text>\n",
        (kLeft + kWidth - kRight) / 2, kHeight - 8);
    add("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">GFLOP/s</text>\n",
        (kTop + kHeight - kBottom) / 2);
  }

  // The slope up to the highest peak, each peak from the slope on.
  void draw_roofs() {
    const double bandwidth = std::log10(ceilings_.read_bytes_per_second);
    const double log_two = std::log10(2.0);
    const auto slope_y = [&](double x) { return bandwidth + x * log_two; };
    std::vector<std::pair<double, std::string>> peaks;
    for (const auto& [name, rate] : ceilings_.flops_per_second) {
      if (rate > 0) peaks.emplace_back(std::log10(rate), name);
    }
    std::sort(peaks.rbegin(), peaks.rend());
    const double highest = peaks.empty() ? y_.high : peaks.front().first;
    const double begin = std::max(x_.low, (y_.low - bandwidth) / log_two);
    const double end = std::clamp((highest - bandwidth) / log_two, begin, x_.high);
    add("<line class=\"roof\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        x_.at(begin), y_.at(slope_y(begin)), x_.at(end), y_.at(slope_y(end)));
    const double angle =
        -std::atan2(y_.at(slope_y(begin)) - y_.at(slope_y(end)), x_.at(end) - x_.at(begin)) * 180 /
        M_PI;
    const double middle = (begin + end) / 2;
    add("<text transform=\"translate({:.1f} {:.1f}) rotate({:.1f})\" text-anchor=\"middle\">"
        "read {:.1f} GB/s</text>\n",
        x_.at(middle), y_.at(slope_y(middle)) - 8, angle, ceilings_.read_bytes_per_second / kGiga);
    double last_label = -1e9;
    for (const auto& [log_rate, name] : peaks) {
      const double x = std::clamp((log_rate - bandwidth) / log_two, x_.low, x_.high);
      const double label = std::max(y_.at(log_rate) + 4, last_label + 13);
      last_label = label;
      add("<line class=\"roof\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
          x_.at(x), y_.at(log_rate), kWidth - kRight, y_.at(log_rate));
      add("<text x=\"{}\" y=\"{:.1f}\">{} {:.0f}</text>\n", kWidth - kRight + 6, label,
          escape_html(name), std::pow(10, log_rate) / kGiga);
    }
  }

  void draw_points(const std::vector<std::string>& candidates) {
    for (const Result* result : results_) {
      const auto index = (std::find(candidates.begin(), candidates.end(), result->candidate()) -
                          candidates.begin()) %
                         kNumColours;
      add("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"><title>{}, {}: {:.1f} "
          "GFLOP/s, {:.1f} GB/s, {:.1f} % of {}</title></circle>\n",
          index, x_.at(std::log2(intensity(*result))), y_.at(std::log10(result->flops_per_second)),
          escape_html(result->name), escape_html(result->candidate()),
          result->flops_per_second / kGiga, result->bytes_per_second / kGiga,
          100 * result->share_of_ceiling, escape_html(result->ceiling));
    }
  }

  const CeilingValues& ceilings_;
  const std::vector<const Result*>& results_;
  Axis x_, y_;
  std::string text_;
};

}  // namespace

std::string roofline_svg(const CeilingValues& ceilings, const std::vector<const Result*>& results,
                         const std::vector<std::string>& candidates) {
  return Plot(ceilings, results).svg(candidates);
}

}  // namespace quire::benchmark
