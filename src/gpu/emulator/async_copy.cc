// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies. The hardware may move the bytes at any moment between issue and wait, so the
// destination must be free of other accesses from the issue on, and the bytes arrive at the wait,
// the last moment allowed: a kernel that looks too early sees old ones. A source that changes under
// way would be copied before or after the change; its bytes at the issue and at the wait must
// agree.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt::internal {
namespace {

MemoryAccess destination_of(const AsyncCopy& copy, int thread) {
  return {.thread = thread,
          .address = reinterpret_cast<std::uintptr_t>(copy.destination),
          .bytes = static_cast<std::size_t>(copy.bytes),
          .kind = AccessKind::kWrite,
          .pc = copy.pc,
          .site = copy.site};
}

MemoryAccess source_of(const AsyncCopy& copy, int thread) {
  return {.thread = thread,
          .address = reinterpret_cast<std::uintptr_t>(copy.source),
          .bytes = static_cast<std::size_t>(copy.source_bytes),
          .kind = AccessKind::kRead,
          .pc = copy.pc,
          .site = copy.site};
}

}  // namespace

void Launch::copy_async(AsyncCopy copy) {
  const int self = current();
  const MemoryAccess destination = destination_of(copy, self);
  const MemoryAccess source = source_of(copy, self);
  if (copy.bytes != 4 && copy.bytes != 8 && copy.bytes != 16) {
    checker_.raise(FaultKind::kMisaligned, destination,
                   "an asynchronous copy has 4, 8 or 16 bytes");
  }
  if (copy.source_bytes < 0 || copy.source_bytes > copy.bytes) {
    checker_.raise(
        FaultKind::kOutOfBounds, source,
        concat("an asynchronous copy of ", copy.source_bytes, " bytes into ", copy.bytes));
  }
  if (destination.address % destination.bytes != 0) {
    checker_.raise(FaultKind::kMisaligned, destination, "the destination of an asynchronous copy");
  }
  if (!shared_.contains(destination.address)) {
    checker_.raise(FaultKind::kOutOfBounds, destination,
                   "the destination of an asynchronous copy is not in shared memory");
  }
  if (copy.source_bytes > 0) {
    if (source.address % destination.bytes != 0) {
      checker_.raise(FaultKind::kMisaligned, source, "the source of an asynchronous copy");
    }
    if (shared_.contains(source.address)) {
      checker_.raise(FaultKind::kOutOfBounds, source,
                     "the source of an asynchronous copy is in shared memory");
    }
    checker_.check(source);
    std::memcpy(copy.seen.data(), copy.source, source.bytes);
  }
  checker_.begin_copy(destination);
  copy.group = thread(self).open_group;
  thread(self).copies.push_back(copy);
}

void Launch::copy_async_commit() {
  ++thread(current()).open_group;
}

void Launch::copy_async_wait(int groups_left) {
  ThreadRecord& record = thread(current());
  const auto left = static_cast<std::uint64_t>(std::max(groups_left, 0));
  if (left >= record.open_group) return;
  const std::uint64_t first_left = record.open_group - left;
  const auto under_way =
      std::find_if(record.copies.begin(), record.copies.end(),
                   [&](const AsyncCopy& copy) { return copy.group >= first_left; });
  std::for_each(record.copies.begin(), under_way, [&](const AsyncCopy& copy) { finish(copy); });
  record.copies.erase(record.copies.begin(), under_way);
}

void Launch::finish(const AsyncCopy& copy) {
  const int self = current();
  const MemoryAccess source = source_of(copy, self);
  if (source.bytes > 0) {
    checker_.check(source);
    if (std::memcmp(copy.seen.data(), copy.source, source.bytes) != 0) {
      checker_.raise(FaultKind::kAsyncPending, source,
                     "the source of an asynchronous copy changed before its wait");
    }
  }
  checker_.end_copy(destination_of(copy, self));
  auto* const destination = static_cast<std::byte*>(copy.destination);
  std::memcpy(destination, copy.seen.data(), source.bytes);
  std::memset(destination + source.bytes, 0, static_cast<std::size_t>(copy.bytes) - source.bytes);
}

}  // namespace quire::simt::internal
