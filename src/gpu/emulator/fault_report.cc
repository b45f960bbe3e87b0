// SPDX-License-Identifier: Apache-2.0
// Faults in words.
#include <cstring>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt {

const char* fault_kind_name(FaultKind kind) noexcept {
  switch (kind) {
    case FaultKind::kOutOfBounds:
      return "out of bounds";
    case FaultKind::kReadOnly:
      return "store to read-only memory";
    case FaultKind::kForeignStack:
      return "access to another thread's stack";
    case FaultKind::kHostMemory:
      return "access to host memory";
    case FaultKind::kMisaligned:
      return "misaligned";
    case FaultKind::kUninitialised:
      return "uninitialised read";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kDivergentBarrier:
      return "divergent barrier";
    case FaultKind::kDivergentCollective:
      return "divergent collective";
    case FaultKind::kInactiveLane:
      return "inactive lane";
    case FaultKind::kAsyncPending:
      return "asynchronous copy under way";
    case FaultKind::kSharedLimit:
      return "shared memory limit";
    case FaultKind::kStackOverflow:
      return "stack overflow";
    case FaultKind::kHang:
      return "hang";
    case FaultKind::kException:
      return "exception";
    case FaultKind::kCheckFailed:
      return "check failed";
  }
  __builtin_unreachable();
}

namespace internal {
namespace {

std::string words(const Dim3& index) {
  return concat("(", index.x, ",", index.y, ",", index.z, ")");
}

const char* words(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "load";
    case AccessKind::kWrite:
      return "store";
    case AccessKind::kAtomicRead:
      return "atomic load";
    case AccessKind::kAtomicWrite:
      return "atomic store";
    case AccessKind::kAtomicUpdate:
      return "atomic update";
  }
  __builtin_unreachable();
}

std::string words(const Site& site) {
  const char* const slash = std::strrchr(site.file, '/');
  return concat(slash == nullptr ? site.file : slash + 1, ":", site.line);
}

std::string where(const Site& site, const void* pc) {
  if (site.line != 0) return words(site);
  return pc == nullptr ? std::string() : describe_code(pc);
}

}  // namespace

std::string Launch::thread_name(int thread) const {
  const int warp_width = shape_.warp_width;
  return concat("thread ", words(threads_[static_cast<std::size_t>(thread)].index), " (warp ",
                thread / warp_width, ", lane ", thread % warp_width, ")");
}

FaultReport Launch::report(const Fault& fault) const {
  FaultReport report;
  report.kind = fault.kind;
  report.kernel = kernel_;
  report.block = block_;
  report.thread = threads_[static_cast<std::size_t>(fault.thread)].index;
  report.address = fault.address;
  report.bytes = fault.bytes;
  report.where = where(fault.site, fault.pc);

  std::string text = concat(fault_kind_name(fault.kind), " in kernel ", kernel_, ", block ",
                            words(block_), ", ", thread_name(fault.thread), ": ");
  if (fault.bytes != 0) {
    text += concat(words(fault.access), " of ", fault.bytes, " bytes at 0x", std::hex,
                   fault.address, ", ");
  }
  text += fault.text;
  if (!report.where.empty()) text += concat("\n  at ", report.where);
  if (fault.earlier) {
    const EarlierAccess& earlier = *fault.earlier;
    const bool pending = fault.kind == FaultKind::kAsyncPending;
    text += concat("\n  ", pending ? "copy issued" : "not ordered after the ",
                   pending ? "" : words(earlier.kind), " by ", thread_name(earlier.stamp.thread),
                   " of block ", words(blocks_run_[earlier.stamp.block - 1]));
    const std::string place = where({}, earlier.pc);
    if (!place.empty()) text += concat("\n  at ", place);
  }
  report.message = std::move(text);
  return report;
}

}  // namespace internal
}  // namespace quire::simt
