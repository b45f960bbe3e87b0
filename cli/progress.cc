// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace quire::cli {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr int kBarWidth = 30;
constexpr std::size_t kTextWidth = 40;

}  // namespace

Progress::Progress(std::int64_t total) : total_(total), enabled_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(std::int64_t done, std::string_view what) {
  if (!enabled_ || total_ <= 0) return;
  const Clock::time_point now = Clock::now();
  if (now - start_ < kPatience || now - last_ < kInterval) return;
  last_ = now;
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(total_);
  const int filled = static_cast<int>(share * kBarWidth);
  const double left = done > 0 ? elapsed * (1 - share) / share : 0;
  fmt::print(stderr, "\r\033[K[{:=<{}}{: <{}}] {}/{} {:.0f} s left  {}", "", filled, "",
             kBarWidth - filled, done, total_, left,
             what.substr(0, std::min(what.size(), kTextWidth)));
  std::fflush(stderr);
}

}  // namespace quire::cli
