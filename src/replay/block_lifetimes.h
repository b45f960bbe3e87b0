// SPDX-License-Identifier: Apache-2.0
// How long contents stay in the prefix cache: from the step that stored them to the one that gave
// them up for others.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "quire/kv_events.h"

namespace quire::replay {

// Counts by powers of 10^(1/5), for values that span many magnitudes.
class LogHistogram {
 public:
  static constexpr int kBinsPerDecade = 5;
  static constexpr int kNumBins = 50;        // ten decades
  static constexpr double kSmallest = 1e-4;  // smaller ones fall into the first bin

  void add(double value);
  static double lower_bound(int bin);  // of a bin, or the end of the last
  const std::vector<std::int64_t>& counts() const noexcept { return counts_; }
  std::int64_t total() const noexcept { return total_; }

 private:
  std::vector<std::int64_t> counts_ = std::vector<std::int64_t>(kNumBins, 0);
  std::int64_t total_ = 0;
};

// Not thread-safe; given to a BlockManager as its sink.
class BlockLifetimes final : public KvEventSink {
 public:
  void on_event(const KvEvent& event) noexcept override;

  void set_time(double now_s) noexcept { now_s_ = now_s; }
  const LogHistogram& evicted() const noexcept { return evicted_; }  // seconds
  LogHistogram alive() const;                                        // ages now
  // False if memory ran out for a content: counts are then too low.
  bool is_complete() const noexcept { return is_complete_; }

 private:
  struct KeyHash {
    std::size_t operator()(const Digest& digest) const noexcept;
  };

  double now_s_ = 0;
  std::unordered_map<Digest, double, KeyHash> stored_s_;
  LogHistogram evicted_;
  bool is_complete_ = true;
};

}  // namespace quire::replay
