// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error: only on a terminal, and only once two seconds have passed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

class Progress {
 public:
  explicit Progress(std::int64_t total);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total are finished; `what` is shown beside the bar.
  void update(std::int64_t done, std::string_view what);

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t total_;
  bool enabled_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace quire::cli
