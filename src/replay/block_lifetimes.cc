// SPDX-License-Identifier: Apache-2.0
#include "replay/block_lifetimes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace quire::replay {

void LogHistogram::add(double value) {
  const double decades = std::log10(std::max(value, kSmallest) / kSmallest);
  const int bin = std::clamp(static_cast<int>(decades * kBinsPerDecade), 0, kNumBins - 1);
  ++counts_[static_cast<std::size_t>(bin)];
  ++total_;
}

double LogHistogram::lower_bound(int bin) {
  return kSmallest * std::pow(10.0, static_cast<double>(bin) / kBinsPerDecade);
}

std::size_t BlockLifetimes::KeyHash::operator()(const Digest& digest) const noexcept {
  std::size_t hash = 0;
  std::memcpy(&hash, digest.bytes.data(), sizeof(hash));
  return hash;
}

void BlockLifetimes::on_event(const KvEvent& event) noexcept {
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      try {
        stored_s_.emplace(event.digest, now_s_);
      } catch (const std::bad_alloc&) {
        is_complete_ = false;
      }
      return;
    case KvEvent::Kind::kRemoved: {
      const auto found = stored_s_.find(event.digest);
      if (found == stored_s_.end()) return;
      evicted_.add(now_s_ - found->second);
      stored_s_.erase(found);
      return;
    }
    case KvEvent::Kind::kCleared:
      stored_s_.clear();
      return;
  }
}

LogHistogram BlockLifetimes::alive() const {
  LogHistogram ages;
  for (const auto& [digest, stored_s] : stored_s_) ages.add(now_s_ - stored_s);
  return ages;
}

}  // namespace quire::replay
