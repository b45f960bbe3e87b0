// SPDX-License-Identifier: Apache-2.0
#include "replay/time_series.h"

namespace quire::replay {

void Bucket::add(const Bucket& other) {
  seconds += other.seconds;
  in_use += other.in_use;
  evictable += other.evictable;
  running += other.running;
  waiting += other.waiting;
  prefill_tokens += other.prefill_tokens;
  decode_tokens += other.decode_tokens;
  cached_tokens += other.cached_tokens;
  full_blocks += other.full_blocks;
  hit_blocks += other.hit_blocks;
  ideal_hit_blocks += other.ideal_hit_blocks;
  preemptions += other.preemptions;
  evictions += other.evictions;
  num_steps += other.num_steps;
}

void TimeSeries::add(double time_s, const Bucket& step) {
  while (time_s >= width_s_ * static_cast<double>(max_buckets_)) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (i % 2 == 1) {
        buckets_[i / 2].add(buckets_[i]);
      } else if (i > 0) {
        buckets_[i / 2] = buckets_[i];
      }
    }
    buckets_.resize((buckets_.size() + 1) / 2);
    width_s_ *= 2;
  }
  const auto index = static_cast<std::size_t>(time_s / width_s_);
  if (index >= buckets_.size()) buckets_.resize(index + 1);
  buckets_[index].add(step);
}

}  // namespace quire::replay
