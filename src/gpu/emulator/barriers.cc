// SPDX-License-Identifier: Apache-2.0
// Where threads meet: the barrier of the block, collectives of a warp, and what it means when some
// never come.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <tuple>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt::internal {
namespace {

// Copies of one inlined function may carry the same file name at two addresses.
bool same_site(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string describe(const Site& site) {
  const char* const slash = std::strrchr(site.file, '/');
  return concat(slash == nullptr ? site.file : slash + 1, ":", site.line);
}

std::string hex(LaneMask mask) {
  return concat("0x", std::hex, mask);
}

// "threads 0-31, 40" or "thread 7". REQUIRES: sorted, not empty.
std::string describe(const std::vector<int>& threads) {
  std::string ranges;
  for (std::size_t i = 0; i < threads.size();) {
    std::size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    ranges += concat(i == 0 ? "" : ", ", threads[i]);
    if (last > i) ranges += concat("-", threads[last]);
    i = last + 1;
  }
  return concat(threads.size() == 1 ? "thread " : "threads ", ranges);
}

}  // namespace

void Launch::sync_threads(Site site, const void* pc) {
  ThreadRecord& self = thread(current());
  self.state = ThreadState::kAtBarrier;
  self.site = site;
  self.pc = pc;
  if (num_done_ != 0) {
    raise(FaultKind::kDivergentBarrier, describe_waiting(), site, pc);
  }
  if (num_at_barrier_++ == 0) {
    barrier_site_ = site;
  } else if (!same_site(barrier_site_, site)) {
    raise(FaultKind::kDivergentBarrier, describe_waiting(), site, pc);
  }
  if (num_at_barrier_ == num_threads_) complete_barrier();
  scheduler_.wait();
}

void Launch::complete_barrier() {
  order_.sync_block();
  num_at_barrier_ = 0;
  woken_.clear();
  for (int i = 0; i < num_threads_; ++i) {
    thread(i).state = ThreadState::kRunnable;
    woken_.push_back(i);
  }
  scheduler_.wake(woken_);
}

void Launch::leave_kernel() {
  const int self = current();
  const auto warp = static_cast<std::size_t>(warp_of(self));
  const LaneMask lane = LaneMask{1} << (self % shape_.warp_width);
  thread(self).state = ThreadState::kDone;
  ++num_done_;
  done_lanes_[warp] |= lane;
  if (num_at_barrier_ != 0) {
    raise(FaultKind::kDivergentBarrier, describe_waiting(), {}, nullptr);
  }
  for (LaneMask left = in_collective_[warp]; left != 0; left &= left - 1) {
    const ThreadRecord& other = thread(thread_of_lane(std::countr_zero(left)));
    if ((other.mask & lane) == 0) continue;
    raise(FaultKind::kDivergentCollective, describe_waiting(), other.site, other.pc);
  }
}

LaneMask Launch::lanes_of_warp(int warp) const {
  const int num_lanes = std::min(shape_.warp_width, num_threads_ - warp * shape_.warp_width);
  return num_lanes == 64 ? kFullMask : (LaneMask{1} << num_lanes) - 1;
}

void Launch::collective(const CollectiveCall& call) {
  const int index = current();
  const int warp = warp_of(index);
  const LaneMask lane = LaneMask{1} << (index % shape_.warp_width);
  const LaneMask lanes = call.mask & lanes_of_warp(warp);
  ThreadRecord& self = thread(index);
  if ((lanes & lane) == 0) {
    raise(FaultKind::kInactiveLane,
          concat(call.name, " with mask ", hex(call.mask), ", which lacks the caller's lane ",
                 index % shape_.warp_width),
          call.site, call.pc);
  }
  self.state = ThreadState::kInCollective;
  self.site = call.site;
  self.pc = call.pc;
  self.mask = lanes;
  self.run = call.run;
  self.collective = call.name;
  self.operands = call.operands;
  LaneMask& waiting = in_collective_[static_cast<std::size_t>(warp)];
  waiting |= lane;
  if ((done_lanes_[static_cast<std::size_t>(warp)] & lanes) != 0) {
    raise(FaultKind::kDivergentCollective, describe_waiting(), call.site, call.pc);
  }
  if ((waiting & lanes) == lanes) {
    check_same_collective(self, lanes);
    waiting &= ~lanes;
    complete_collective(warp, lanes);
  }
  scheduler_.wait();
}

void Launch::check_same_collective(const ThreadRecord& self, LaneMask lanes) {
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const ThreadRecord& other = thread(thread_of_lane(std::countr_zero(left)));
    if (other.mask == lanes && other.run == self.run && same_site(other.site, self.site)) continue;
    raise(FaultKind::kDivergentCollective, describe_waiting(), self.site, self.pc);
  }
}

void Launch::complete_collective(int warp, LaneMask lanes) {
  std::array<void*, 64> operands{};
  woken_.clear();
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const int index = warp * shape_.warp_width + lane;
    operands[static_cast<std::size_t>(lane)] = thread(index).operands;
    thread(index).state = ThreadState::kRunnable;
    woken_.push_back(index);
  }
  const CollectiveFunction function = thread(current()).run;
  if (function != nullptr) {
    function({.mask = lanes, .warp_width = shape_.warp_width, .operands = operands.data()});
  } else {
    order_.sync_warp(warp, lanes);
  }
  scheduler_.wake(woken_);
}

std::string Launch::describe_waiting() const {
  // Threads that do the same thing at the same place, in one group.
  using Group = std::tuple<ThreadState, std::string>;
  std::map<Group, std::vector<int>> groups;
  for (int i = 0; i < num_threads_; ++i) {
    const ThreadRecord& record = threads_[static_cast<std::size_t>(i)];
    std::string what;
    switch (record.state) {
      case ThreadState::kAtBarrier:
        what = concat(" at sync_threads (", describe(record.site), ")");
        break;
      case ThreadState::kInCollective:
        what = concat(" in ", record.collective, " with mask ", hex(record.mask), " (",
                      describe(record.site), ")");
        break;
      case ThreadState::kDone:
        what = " left the kernel";
        break;
      case ThreadState::kNotStarted:
      case ThreadState::kRunnable:
        continue;  // on its way
    }
    groups[{record.state, std::move(what)}].push_back(i);
  }
  std::string words;
  for (const auto& [group, threads] : groups) {
    words += concat(words.empty() ? "" : "; ", describe(threads), std::get<1>(group));
  }
  return words;
}

// Some threads wait and none can run.
Fault Launch::stuck() const {
  const auto first = std::find_if(threads_.begin(), threads_.end(), [](const ThreadRecord& record) {
    return record.state == ThreadState::kInCollective;
  });
  const bool collective = first != threads_.end();
  const auto waiting =
      collective ? first
                 : std::find_if(threads_.begin(), threads_.end(), [](const ThreadRecord& record) {
                     return record.state == ThreadState::kAtBarrier;
                   });
  return {.kind = collective ? FaultKind::kDivergentCollective : FaultKind::kDivergentBarrier,
          .thread = static_cast<int>(waiting - threads_.begin()),
          .text = describe_waiting(),
          .pc = waiting->pc,
          .site = waiting->site};
}

}  // namespace quire::simt::internal
