// SPDX-License-Identifier: Apache-2.0
// Shuffles and votes, run once for all lanes when the last of them has come.
#include <bit>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt {
namespace {

using internal::ShuffleKind;

struct ShuffleOperands {
  ShuffleKind kind;
  int operand;
  std::uint64_t value;
  std::uint64_t result;
};

struct VoteOperands {
  bool predicate;
  LaneMask result;
};

// The lane whose value `lane` asks for; its own where that would be beyond the warp.
int source_lane(const ShuffleOperands& shuffle, int lane, int warp_width) {
  int source = lane;
  switch (shuffle.kind) {
    case ShuffleKind::kIndex:
      return shuffle.operand & (warp_width - 1);
    case ShuffleKind::kXor:
      source = lane ^ shuffle.operand;
      break;
    case ShuffleKind::kUp:
      source = lane - shuffle.operand;
      break;
    case ShuffleKind::kDown:
      source = lane + shuffle.operand;
      break;
  }
  return source >= 0 && source < warp_width ? source : lane;
}

[[noreturn]] void raise_inactive(int lane, int source, LaneMask mask) {
  internal::Launch& launch = *internal::running_launch;
  const int thread = launch.thread_of_lane(lane);
  const internal::ThreadRecord& record = launch.thread(thread);
  throw internal::Fault{.kind = FaultKind::kInactiveLane,
                        .thread = thread,
                        .text = concat("shuffle from lane ", source,
                                       ", which takes no part; mask 0x", std::hex, mask),
                        .pc = record.pc,
                        .site = record.site};
}

void run_shuffle(const Lanes& lanes) {
  for (LaneMask left = lanes.mask; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    auto& own = *static_cast<ShuffleOperands*>(lanes.operands[lane]);
    const int source = source_lane(own, lane, lanes.warp_width);
    if (((lanes.mask >> source) & 1) == 0) raise_inactive(lane, source, lanes.mask);
    own.result = static_cast<const ShuffleOperands*>(lanes.operands[source])->value;
  }
}

void run_vote(const Lanes& lanes) {
  LaneMask votes = 0;
  for (LaneMask left = lanes.mask; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (static_cast<const VoteOperands*>(lanes.operands[lane])->predicate) {
      votes |= LaneMask{1} << lane;
    }
  }
  for (LaneMask left = lanes.mask; left != 0; left &= left - 1) {
    static_cast<VoteOperands*>(lanes.operands[std::countr_zero(left)])->result = votes;
  }
}

LaneMask vote(const char* name, bool predicate, LaneMask mask, Site site, const void* pc) {
  VoteOperands operands{.predicate = predicate, .result = 0};
  internal::Launch::enter([&](internal::Launch& launch) {
    launch.collective({.run = run_vote,
                       .name = name,
                       .operands = &operands,
                       .mask = mask,
                       .site = site,
                       .pc = pc});
  });
  return operands.result;
}

}  // namespace

LaneMask ballot(bool predicate, LaneMask mask, Site site) noexcept {
  return vote("ballot", predicate, mask, site, __builtin_return_address(0));
}

bool any(bool predicate, LaneMask mask, Site site) noexcept {
  return vote("any", predicate, mask, site, __builtin_return_address(0)) != 0;
}

// All of them agree when none of them votes against it.
bool all(bool predicate, LaneMask mask, Site site) noexcept {
  return vote("all", !predicate, mask, site, __builtin_return_address(0)) == 0;
}

std::uint64_t internal::shuffle(ShuffleKind kind, std::uint64_t bits, int operand, LaneMask mask,
                                Site site) noexcept {
  const void* const pc = __builtin_return_address(0);
  ShuffleOperands operands{.kind = kind, .operand = operand, .value = bits, .result = 0};
  Launch::enter([&](Launch& launch) {
    launch.collective({.run = run_shuffle,
                       .name = "shuffle",
                       .operands = &operands,
                       .mask = mask,
                       .site = site,
                       .pc = pc});
  });
  return operands.result;
}

}  // namespace quire::simt
