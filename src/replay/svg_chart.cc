// SPDX-License-Identifier: Apache-2.0
#include "replay/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace quire::replay {
namespace {

// Of the drawing, in its own units.
constexpr double kWidth = 600;
constexpr double kHeight = 260;
constexpr double kLeft = 62;
constexpr double kRight = 16;
constexpr double kTop = 12;
constexpr double kBottom = 48;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr int kTicksX = 8;
constexpr int kTicksY = 5;

// 1, 2 or 5 times a power of ten, such that about `num_ticks` of it make the range.
double nice_step(double range, int num_ticks) {
  const double raw = range / num_ticks;
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * magnitude * 1.4) return factor * magnitude;
  }
  return 10 * magnitude;
}

class Drawing {
 public:
  Drawing(const Chart& chart, ChartKind kind) : chart_(chart), kind_(kind) {
    is_log_ = kind == ChartKind::kBars;
    x_min_ = chart.x.front();
    x_max_ = std::max(chart.x.back(), x_min_ * (is_log_ ? 10 : 1) + (is_log_ ? 0 : 1e-9));
    y_max_ = chart.y_max > 0 ? chart.y_max : largest() * 1.05;
    if (y_max_ <= 0) y_max_ = 1;
  }

  std::string draw() {
    open();
    axes();
    switch (kind_) {
      case ChartKind::kLines:
        lines();
        break;
      case ChartKind::kStacked:
        areas();
        break;
      case ChartKind::kBars:
        bars();
        break;
    }
    if (kind_ != ChartKind::kBars) hover();
    out_ += "</svg>";
    return out_;
  }

 private:
  double largest() const {
    double result = 0;
    for (std::size_t i = 0; i < chart_.series.front().values.size(); ++i) {
      double sum = 0;
      for (const ChartSeries& series : chart_.series) {
        const double value = std::isnan(series.values[i]) ? 0 : series.values[i];
        sum = kind_ == ChartKind::kStacked ? sum + value : std::max(sum, value);
      }
      result = std::max(result, sum);
    }
    return result;
  }
  double x_of(double x) const {
    const double share = is_log_ ? std::log(x / x_min_) / std::log(x_max_ / x_min_)
                                 : (x - x_min_) / (x_max_ - x_min_);
    return kLeft + kPlotWidth * share;
  }
  double y_of(double y) const { return kTop + kPlotHeight * (1 - std::min(y, y_max_) / y_max_); }

  void open() {
    out_ += fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">"
        "<title id=\"{}-t\">{}</title><desc id=\"{}-d\">{}</desc>\n",
        kWidth, kHeight, chart_.id, chart_.id, chart_.id, escape_html(chart_.title), chart_.id,
        escape_html(chart_.description));
  }

  void tick_x(double x, const std::string& text) {
    out_ += fmt::format(
        "<line class=\"tick\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4}</text>\n",
        x_of(x), kTop + kPlotHeight, kTop + kPlotHeight + 5, kTop + kPlotHeight + 19, text);
  }

  void axes() {
    const double y_step = nice_step(y_max_, kTicksY);
    for (double y = 0; y <= y_max_ * 1.0001; y += y_step) {
      out_ += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft, kWidth - kRight, y_of(y), y_of(y), kLeft - 7, y_of(y) + 4, short_number(y));
    }
    if (is_log_) {
      const double first = std::pow(10.0, std::ceil(std::log10(x_min_) - 1e-9));
      for (double x = first; x <= x_max_ * 1.0001; x *= 10) tick_x(x, short_number(x));
    } else {
      const double x_step = nice_step(x_max_ - x_min_, kTicksX);
      for (double x = std::ceil(x_min_ / x_step) * x_step; x <= x_max_ * 1.0001; x += x_step) {
        tick_x(x, short_number(x));
      }
    }
    out_ += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"label\" x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"middle\">{5}</text>"
        "<text class=\"label\" transform=\"translate(14 {6:.1f}) rotate(-90)\" "
        "text-anchor=\"middle\">{7}</text>\n",
        kLeft, kWidth - kRight, kTop + kPlotHeight, kLeft + kPlotWidth / 2, kHeight - 8,
        escape_html(chart_.x_label), kTop + kPlotHeight / 2, escape_html(chart_.y_label));
  }

  void lines() {
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      std::string path;
      bool is_down = false;
      for (std::size_t i = 0; i < chart_.x.size(); ++i) {
        const double value = chart_.series[s].values[i];
        if (std::isnan(value)) {
          is_down = false;
          continue;
        }
        path += fmt::format("{}{:.1f} {:.1f}", is_down ? 'L' : 'M', x_of(chart_.x[i]), y_of(value));
        is_down = true;
      }
      out_ += fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n", s, path);
    }
  }

  // The first series lies at the bottom.
  void areas() {
    std::vector<double> below(chart_.x.size(), 0);
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      std::string path;
      std::string back;
      for (std::size_t i = 0; i < chart_.x.size(); ++i) {
        const double value = chart_.series[s].values[i];
        const double x = x_of(chart_.x[i]);
        back.insert(0, fmt::format("L{:.1f} {:.1f}", x, y_of(below[i])));
        below[i] += std::isnan(value) ? 0 : value;
        path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L', x, y_of(below[i]));
      }
      out_ += fmt::format("<path class=\"area s{}\" d=\"{}{}Z\"/>\n", s, path, back);
    }
  }

  // Those of one bin stand side by side.
  void bars() {
    const auto num_series = static_cast<double>(chart_.series.size());
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const ChartSeries& series = chart_.series[s];
      for (std::size_t i = 0; i < series.values.size(); ++i) {
        if (series.values[i] <= 0) continue;
        const double left = x_of(chart_.x[i]);
        const double width = (x_of(chart_.x[i + 1]) - left) / num_series;
        out_ += fmt::format(
            "<rect class=\"bar s{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
            "<title>{}: {} from {} to {}</title></rect>\n",
            s, left + width * static_cast<double>(s) + 0.5, y_of(series.values[i]),
            std::max(width - 1, 0.5), kTop + kPlotHeight - y_of(series.values[i]),
            escape_html(series.name), short_number(series.values[i]), short_number(chart_.x[i]),
            short_number(chart_.x[i + 1]));
      }
    }
  }

  // A stripe for every x that shows its values.
  void hover() {
    for (std::size_t i = 0; i < chart_.x.size(); ++i) {
      const double left = i == 0 ? kLeft : (x_of(chart_.x[i - 1]) + x_of(chart_.x[i])) / 2;
      const double right = i + 1 == chart_.x.size()
                               ? kWidth - kRight
                               : (x_of(chart_.x[i]) + x_of(chart_.x[i + 1])) / 2;
      out_ += fmt::format(
          "<rect class=\"hover\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{} = "
          "{}",
          left, kTop, right - left, kPlotHeight, escape_html(chart_.x_label),
          short_number(chart_.x[i]));
      for (const ChartSeries& series : chart_.series) {
        if (std::isnan(series.values[i])) continue;
        out_ += fmt::format("\n{}: {}", escape_html(series.name), short_number(series.values[i]));
      }
      out_ += "</title></rect>\n";
    }
  }

  const Chart& chart_;
  ChartKind kind_;
  bool is_log_ = false;
  double x_min_ = 0;
  double x_max_ = 1;
  double y_max_ = 1;
  std::string out_;
};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string short_number(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 1e9) return fmt::format("{:.3g}G", value / 1e9);
  if (magnitude >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (magnitude >= 1e4) return fmt::format("{:.3g}k", value / 1e3);
  if (magnitude >= 1000) return fmt::format("{:.0f}", value);
  if (magnitude < 1e-12) return "0";
  return fmt::format("{:.3g}", value);
}

std::string draw_chart(const Chart& chart, ChartKind kind) {
  std::string out = fmt::format("<figure id=\"{}\"><figcaption>{}</figcaption>\n", chart.id,
                                escape_html(chart.title));
  bool has_value = false;
  for (const ChartSeries& series : chart.series) {
    has_value = has_value || std::ranges::any_of(series.values, [](double v) { return v > 0; });
  }
  if (chart.x.size() < 2 || !has_value) {
    return out + "<p class=\"none\">Nothing to show in this replay.</p></figure>\n";
  }
  out += "<div class=\"legend\">";
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    out +=
        fmt::format("<span><i class=\"s{}\"></i>{}</span>", s, escape_html(chart.series[s].name));
  }
  out += "</div>\n" + Drawing(chart, kind).draw();
  return out + fmt::format("<p class=\"note\">{}</p></figure>\n", escape_html(chart.description));
}

}  // namespace quire::replay
