// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace quire::cli {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr int kBarWidth = 30;

// A line that wraps could not be cleared.
std::size_t line_width() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (is_known ? size.ws_col : kUsual) - 1;
}

std::string time_left(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (seconds < 2 * kMinute) return fmt::format("{:.0f} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{:.0f} min", seconds / kMinute);
  return fmt::format("{:.0f} h", seconds / kHour);
}

}  // namespace

Progress::Progress(std::int64_t total, Unit unit)
    : total_(total), unit_(unit), enabled_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) static_cast<void>(std::fputs("\r\033[K", stderr));
}

bool Progress::is_due() const {
  if (!enabled_ || total_ <= 0) return false;
  const Clock::time_point now = Clock::now();
  return now - start_ >= kPatience && now - last_ >= kInterval;
}

void Progress::update(std::int64_t done, std::string_view what) {
  if (!is_due()) return;
  last_ = Clock::now();
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(last_ - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(total_);
  const int filled = static_cast<int>(share * kBarWidth);
  const double left = done > 0 ? elapsed * (1 - share) / share : 0;
  const std::string state = unit_ == Unit::kCounts ? fmt::format("{}/{}", done, total_)
                                                   : fmt::format("{:.0f} %", 100 * share);
  std::string line = fmt::format("[{:=<{}}{: <{}}] {}, {} left  {}", "", filled, "",
                                 kBarWidth - filled, state, time_left(left), what);
  line.resize(std::min(line.size(), line_width()));
  static_cast<void>(std::fputs(("\r\033[K" + line).c_str(), stderr));
  static_cast<void>(std::fflush(stderr));
}

}  // namespace quire::cli
