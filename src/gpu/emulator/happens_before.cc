// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/happens_before.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace quire::simt::internal {

HappensBefore::HappensBefore(int num_threads, int warp_width)
    : num_threads_(num_threads),
      warp_width_log2_(static_cast<unsigned>(std::countr_zero(static_cast<unsigned>(warp_width)))) {
  const auto num_warps = static_cast<std::size_t>((num_threads + warp_width - 1) / warp_width);
  step_.resize(num_warps);
  block_known_.resize(num_warps);
  warp_known_.resize(num_warps);
  for (auto* extras : {&acquired_, &pending_, &released_, &released_block_}) {
    extras->resize(static_cast<std::size_t>(num_threads));
  }
}

void HappensBefore::begin_block(std::uint32_t block) {
  block_ = block;
  std::fill(step_.begin(), step_.end(), 1);
  std::fill(block_known_.begin(), block_known_.end(), 0);
  std::fill(warp_known_.begin(), warp_known_.end(), 0);
  if (has_extras_) {
    for (auto* extras : {&acquired_, &pending_, &released_, &released_block_}) {
      std::fill(extras->begin(), extras->end(), nullptr);
    }
  }
  has_extras_ = false;
  shared_.clear();
}

HappensBefore::Knowledge HappensBefore::join(const Knowledge& a, const Knowledge& b) {
  if (b == nullptr || a == b) return a;
  if (a == nullptr) return b;
  auto joined = std::make_shared<std::vector<BlockSteps>>();
  joined->reserve(std::max(a->size(), b->size()));
  auto left = a->begin();
  auto right = b->begin();
  while (left != a->end() && right != b->end()) {
    if (left->block != right->block) {
      joined->push_back(left->block < right->block ? *left++ : *right++);
    } else if (left->steps == right->steps) {
      joined->push_back(*left);
      ++left, ++right;
    } else {
      Steps steps(left->steps->size());
      std::transform(left->steps->begin(), left->steps->end(), right->steps->begin(), steps.begin(),
                     [](std::uint32_t x, std::uint32_t y) { return std::max(x, y); });
      joined->push_back({left->block, std::make_shared<const Steps>(std::move(steps))});
      ++left, ++right;
    }
  }
  std::copy(left, a->end(), std::back_inserter(*joined));
  std::copy(right, b->end(), std::back_inserter(*joined));
  return joined;
}

bool HappensBefore::knows(const Knowledge& knowledge, const Stamp& stamp) {
  if (knowledge == nullptr) return false;
  const auto found =
      std::lower_bound(knowledge->begin(), knowledge->end(), stamp.block,
                       [](const BlockSteps& entry, std::uint32_t b) { return entry.block < b; });
  return found != knowledge->end() && found->block == stamp.block &&
         stamp.step <= (*found->steps)[stamp.thread];
}

bool HappensBefore::all_ordered(int warp, std::uint32_t step, LaneMask lanes, int thread) const {
  const auto first = static_cast<std::uint16_t>(warp << warp_width_log2_);
  if (known_to_warp({block_, step, first}, static_cast<int>(warp_of(thread)))) return true;
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const int reader = (warp << warp_width_log2_) + std::countr_zero(left);
    if (!ordered({block_, step, static_cast<std::uint16_t>(reader)}, thread)) return false;
  }
  return true;
}

HappensBefore::Knowledge HappensBefore::only_this_block(const Knowledge& knowledge) const {
  if (knowledge == nullptr) return nullptr;
  for (const BlockSteps& entry : *knowledge) {
    if (entry.block == block_) {
      return std::make_shared<const std::vector<BlockSteps>>(1, entry);
    }
  }
  return nullptr;
}

// Everything that `thread` knows, itself up to its current step.
HappensBefore::Knowledge HappensBefore::snapshot(int thread) const {
  Steps steps(static_cast<std::size_t>(num_threads_));
  for (int other = 0; other < num_threads_; ++other) {
    const std::size_t warp = warp_of(other);
    std::uint32_t known = block_known_[warp];
    if (warp == warp_of(thread)) known = std::max(known, warp_known_[warp]);
    steps[static_cast<std::size_t>(other)] = known;
  }
  steps[static_cast<std::size_t>(thread)] = step_[warp_of(thread)];
  auto own = std::make_shared<const std::vector<BlockSteps>>(
      1, BlockSteps{block_, std::make_shared<const Steps>(std::move(steps))});
  return join(acquired_[static_cast<std::size_t>(thread)], own);
}

// Makes the knowledge beyond the common arrays equal in all of `threads`.
void HappensBefore::share_extras(const std::vector<int>& threads) {
  if (!has_extras_) return;
  for (auto* extras : {&acquired_, &pending_, &released_, &released_block_}) {
    Knowledge joined;
    for (const int thread : threads) {
      joined = join(joined, (*extras)[static_cast<std::size_t>(thread)]);
    }
    for (const int thread : threads) (*extras)[static_cast<std::size_t>(thread)] = joined;
  }
}

void HappensBefore::sync_block() {
  if (has_extras_) {
    std::vector<int> threads(static_cast<std::size_t>(num_threads_));
    for (int thread = 0; thread < num_threads_; ++thread) {
      threads[static_cast<std::size_t>(thread)] = thread;
    }
    share_extras(threads);
  }
  for (std::size_t warp = 0; warp < step_.size(); ++warp) block_known_[warp] = step_[warp]++;
}

void HappensBefore::sync_warp(int warp, LaneMask lanes) {
  const int first = warp << warp_width_log2_;
  const int num_lanes = std::min(1 << warp_width_log2_, num_threads_ - first);
  const bool full = std::popcount(lanes) == num_lanes;
  const auto index = static_cast<std::size_t>(warp);
  if (has_extras_ || !full) {
    std::vector<int> threads;
    for (LaneMask left = lanes; left != 0; left &= left - 1) {
      threads.push_back(first + std::countr_zero(left));
    }
    if (!full) {
      has_extras_ = true;
      for (const int thread : threads) {
        acquired_[static_cast<std::size_t>(thread)] = snapshot(thread);
      }
    }
    share_extras(threads);
  }
  if (full) warp_known_[index] = step_[index];
  ++step_[index];
}

// A fence makes known what atomics read before it: the second half of an acquire.
void HappensBefore::acquire(int thread, Scope scope) {
  const auto index = static_cast<std::size_t>(thread);
  if (scope == Scope::kDevice) {
    acquired_[index] = join(acquired_[index], pending_[index]);
    pending_[index] = nullptr;
  } else {
    acquired_[index] = join(acquired_[index], only_this_block(pending_[index]));
  }
}

void HappensBefore::fence(int thread, Scope scope) {
  const auto index = static_cast<std::size_t>(thread);
  has_extras_ = true;
  acquire(thread, scope);
  auto& released = scope == Scope::kDevice ? released_ : released_block_;
  released[index] = join(released[index], snapshot(thread));
  ++step_[warp_of(thread)];
}

HappensBefore::Published& HappensBefore::published(std::uintptr_t address, bool shared_memory) {
  Published& entry = (shared_memory ? shared_ : global_)[address];
  if (entry.owner != block_) {
    entry.owner = block_;
    entry.block = nullptr;
  }
  return entry;
}

void HappensBefore::atomic(int thread, std::uintptr_t address, const AtomicEffect& effect) {
  const auto index = static_cast<std::size_t>(thread);
  const bool acquires = effect.order == Order::kAcquire || effect.order == Order::kAcquireRelease;
  const bool releases = effect.order == Order::kRelease || effect.order == Order::kAcquireRelease;
  Published& entry = published(address, effect.shared_memory);
  if (effect.reads) {
    Knowledge& known = acquires ? acquired_[index] : pending_[index];
    known = join(known, join(entry.device, entry.block));
    has_extras_ = has_extras_ || known != nullptr;
  }
  if (!effect.writes) return;
  if (!effect.reads) entry.device = entry.block = nullptr;
  if (releases) {
    entry.device = join(entry.device, snapshot(thread));
    ++step_[warp_of(thread)];
  } else {
    entry.device = join(entry.device, released_[index]);
  }
  entry.block = join(entry.block, released_block_[index]);
}

}  // namespace quire::simt::internal
