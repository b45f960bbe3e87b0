// SPDX-License-Identifier: Apache-2.0
// What happens over a time whose length is not known before: a bounded number of buckets of equal
// width, which doubles when they do not reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::replay {

// Levels are averages over the time of the bucket, counts are sums.
struct Bucket {
  double seconds = 0;  // that levels were known for
  double in_use = 0;   // times seconds: shares of the cache and numbers of requests
  double evictable = 0;
  double running = 0;
  double waiting = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t cached_tokens = 0;  // of prompts, found instead of computed
  std::int64_t full_blocks = 0;    // of prompts that began
  std::int64_t hit_blocks = 0;
  std::int64_t ideal_hit_blocks = 0;
  std::int64_t preemptions = 0;
  std::int64_t evictions = 0;
  std::int64_t num_steps = 0;

  void add(const Bucket& other);
};

class TimeSeries {
 public:
  explicit TimeSeries(std::size_t max_buckets = 240) : max_buckets_(max_buckets) {}

  // What happened in a step that began at `time_s`. Times do not fall.
  void add(double time_s, const Bucket& step);

  double width_s() const noexcept { return width_s_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }

 private:
  std::size_t max_buckets_;
  double width_s_ = 0.01;
  std::vector<Bucket> buckets_;
};

}  // namespace quire::replay
