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
  enum class Unit : std::uint8_t {
    kCounts,   // "12/300": of things that people count
    kPercent,  // "4 %"
  };

  explicit Progress(std::int64_t total, Unit unit = Unit::kCounts);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether update would show something now.
  bool is_due() const;
  // `done` of the total are finished; `what` is shown beside the bar, as far as the line has room.
  void update(std::int64_t done, std::string_view what);

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t total_;
  Unit unit_;
  bool enabled_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace quire::cli
