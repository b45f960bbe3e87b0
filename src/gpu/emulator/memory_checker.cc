// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/memory_checker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::simt::internal {
namespace {

// No pointer to the first page is meant to be one.
constexpr std::uintptr_t kNullPageBytes = 4096;

}  // namespace

MemoryChecker::MemoryChecker(const Parts& parts, const LaunchShape& shape,
                             const LaunchOptions& options, bool track_histories)
    : parts_(parts),
      warp_width_(shape.warp_width),
      track_(track_histories),
      check_uninitialised_(options.check_uninitialised_shared),
      shared_history_(parts.order, shape.warp_width),
      global_history_(parts.order, shape.warp_width) {}

void MemoryChecker::begin_block() {
  shared_history_.clear();
}

void MemoryChecker::raise(FaultKind kind, const MemoryAccess& access, std::string text,
                          const std::optional<EarlierAccess>& earlier) {
  throw Fault{.kind = kind,
              .thread = access.thread,
              .text = std::move(text),
              .access = access.kind,
              .address = access.address,
              .bytes = access.bytes,
              .pc = access.pc,
              .site = access.site,
              .earlier = earlier};
}

void MemoryChecker::check(const MemoryAccess& access) {
  if (parts_.shared.contains(access.address)) {
    check_shared(access);
  } else if (GlobalMemory::Buffer* const buffer = global_.find(access.address)) {
    check_global(access, *buffer);
  } else {
    check_elsewhere(access);
  }
}

template <class F>
void MemoryChecker::visit_shared(const MemoryAccess& access, F&& f) {
  const auto [words, begin] = parts_.shared.history(access.address, access.bytes);
  shared_history_.visit(words, begin, access.bytes, f);
}

void MemoryChecker::check_shared_bounds(const MemoryAccess& access) {
  if (parts_.shared.allocated(access.address, access.bytes)) return;
  const bool begins_inside = parts_.shared.allocated(access.address, 1);
  raise(FaultKind::kOutOfBounds, access,
        concat(begins_inside ? "the access begins " : "", parts_.shared.describe(access.address)));
}

void MemoryChecker::check_shared(const MemoryAccess& access) {
  check_shared_bounds(access);
  if (!track_) return;
  visit_shared(access, [&](ByteHistory& byte) { check_shared_byte(access, byte); });
}

// Whether a byte of shared memory can be touched at all, by whomever.
void MemoryChecker::check_state(const MemoryAccess& access, const ByteHistory& byte) {
  if (byte.async_pending) [[unlikely]] {
    raise(FaultKind::kAsyncPending, access, parts_.shared.describe(access.address),
          EarlierAccess{byte.writer, AccessKind::kWrite, byte.writer_pc});
  }
  if (byte.writer.block == 0 && check_uninitialised_ && is_read(access.kind)) [[unlikely]] {
    raise(FaultKind::kUninitialised, access, parts_.shared.describe(access.address));
  }
}

void MemoryChecker::check_shared_byte(const MemoryAccess& access, ByteHistory& byte) {
  check_state(access, byte);
  if (const auto earlier = shared_history_.access(byte, access.thread, access.kind, access.pc))
      [[unlikely]] {
    raise(FaultKind::kRace, access, parts_.shared.describe(access.address), earlier);
  }
}

void MemoryChecker::check_warp_read(const MemoryAccess& access, LaneMask lanes) {
  check_shared_bounds(access);
  if (!track_) return;
  const int warp = access.thread / warp_width_;
  visit_shared(access, [&](ByteHistory& byte) {
    check_state(access, byte);
    MemoryAccess racing = access;
    const AccessHistory::WarpRead load{.warp = warp, .lanes = lanes, .pc = access.pc};
    if (const auto earlier = shared_history_.read(byte, load, racing.thread)) [[unlikely]] {
      raise(FaultKind::kRace, racing, parts_.shared.describe(access.address), earlier);
    }
  });
}

void MemoryChecker::check_global(const MemoryAccess& access, GlobalMemory::Buffer& buffer) {
  RegisteredBuffer& registered = *buffer.registered;
  const std::size_t offset = access.address - registered.begin;
  const auto place = [&] {
    return concat(offset, " bytes into ", registered.name, " (", registered.bytes, " bytes)");
  };
  if (access.bytes > registered.bytes - offset) {
    raise(FaultKind::kOutOfBounds, access, concat("the access begins ", place()));
  }
  if (is_write(access.kind) && registered.access == Access::kReadOnly) {
    raise(FaultKind::kReadOnly, access, place());
  }
  if (!track_) return;
  for (std::size_t i = 0; i < access.bytes && !registered.defined.empty(); ++i) {
    std::uint8_t& defined = registered.defined[offset + i];
    if (defined == 0 && is_read(access.kind)) {
      raise(FaultKind::kUninitialised, access, place());
    }
    if (is_write(access.kind)) defined = 1;
  }
  if (registered.access == Access::kReadOnly) return;
  const auto check_byte = [&](ByteHistory& byte) {
    if (const auto earlier = global_history_.access(byte, access.thread, access.kind, access.pc))
        [[unlikely]] {
      raise(FaultKind::kRace, access, place(), earlier);
    }
  };
  for (std::size_t at = offset; at < offset + access.bytes;) {
    const std::size_t begin = at % GlobalMemory::kPageBytes;
    const std::size_t bytes =
        std::min(GlobalMemory::kPageBytes - begin, offset + access.bytes - at);
    global_history_.visit(GlobalMemory::page(buffer, at / GlobalMemory::kPageBytes), begin, bytes,
                          check_byte);
    at += bytes;
  }
}

void MemoryChecker::check_elsewhere(const MemoryAccess& access) {
  const auto within = [&](const StackRange& range) {
    return access.address - range.low < range.bytes;
  };
  if (parts_.fibers.on_any_stack(access.address)) {
    const std::size_t owner = parts_.fibers.fiber_at(access.address);
    if (owner == static_cast<std::size_t>(access.thread)) return;
    raise(FaultKind::kForeignStack, access, concat("a local variable of thread ", owner));
  }
  if (within(parts_.parameters)) {
    if (!is_write(access.kind)) return;
    raise(FaultKind::kReadOnly, access, "the parameters of the kernel");
  }
  const ProgramMemory memory = program_.classify(access.address);
  if (memory == ProgramMemory::kConstant) {
    if (!is_write(access.kind)) return;
    raise(FaultKind::kReadOnly, access, "a constant of the program");
  }
  if (memory == ProgramMemory::kVariable) {
    raise(FaultKind::kHostMemory, access, "a variable of the host program");
  }
  if (within(parts_.host_stack)) {
    raise(FaultKind::kHostMemory, access, "the host's stack: parameters must be captured by value");
  }
  if (access.address < kNullPageBytes) {
    raise(FaultKind::kOutOfBounds, access, "a null pointer");
  }
  const std::string nearest = global_.describe(access.address);
  raise(FaultKind::kOutOfBounds, access, nearest.empty() ? "no buffer is registered" : nearest);
}

void MemoryChecker::begin_copy(const MemoryAccess& destination) {
  check(destination);
  if (!track_) return;
  visit_shared(destination, [](ByteHistory& byte) { byte.async_pending = true; });
}

void MemoryChecker::end_copy(const MemoryAccess& destination) {
  if (!track_) return;
  visit_shared(destination, [&](ByteHistory& byte) {
    byte.async_pending = false;
    check_shared_byte(destination, byte);
  });
}

}  // namespace quire::simt::internal
