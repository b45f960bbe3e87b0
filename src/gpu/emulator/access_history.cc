// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/access_history.h"

#include <bit>
#include <utility>

namespace quire::simt::internal {

AccessHistory::AccessHistory(const HappensBefore& order, int warp_width)
    : order_(order), warp_width_(warp_width), lists_(1), splits_(1) {}

AccessHistory::Split& AccessHistory::split_of(WordHistory& word) {
  if (word.split == 0) {
    word.split = static_cast<std::uint32_t>(splits_.size());
    Split& split = splits_.emplace_back();
    split.fill(word.whole);
    // One list has one owner.
    for (std::size_t i = 1; i < split.size() && word.whole.more_readers != 0; ++i) {
      split[i].more_readers = static_cast<std::uint32_t>(lists_.size());
      ReaderList copy = lists_[word.whole.more_readers];
      lists_.push_back(std::move(copy));
    }
  }
  return splits_[word.split];
}

bool AccessHistory::is_race(const ByteHistory& byte, int thread, AccessKind kind) const {
  if (byte.writer.block == 0) return false;
  if (is_atomic(kind) && byte.atomic_writer) return false;
  return !order_.ordered(byte.writer, thread);
}

// Whether every one of `lanes` in an entry is over for the thread.
bool AccessHistory::entry_ordered(const ReadEntry& entry, int thread, LaneMask lanes) const {
  if (entry.block == order_.now(thread).block) {
    return order_.all_ordered(static_cast<int>(entry.warp), entry.step, lanes, thread);
  }
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const auto reader =
        static_cast<std::uint16_t>(entry.warp * static_cast<std::uint32_t>(warp_width_) +
                                   static_cast<std::uint32_t>(std::countr_zero(left)));
    if (!order_.ordered({entry.block, entry.step, reader}, thread)) return false;
  }
  return true;
}

std::optional<EarlierAccess> AccessHistory::unordered_reader(const ByteHistory& byte,
                                                             int thread) const {
  const auto look = [&](const ReadEntry& entry) -> std::optional<EarlierAccess> {
    for (LaneMask left = entry.lanes; left != 0; left &= left - 1) {
      const LaneMask lane = left & (~left + 1);
      if (entry_ordered(entry, thread, lane)) continue;
      const auto reader =
          static_cast<std::uint16_t>(entry.warp * static_cast<std::uint32_t>(warp_width_) +
                                     static_cast<std::uint32_t>(std::countr_zero(lane)));
      return EarlierAccess{{entry.block, entry.step, reader}, AccessKind::kRead, entry.pc};
    }
    return std::nullopt;
  };
  if (const auto found = look(byte.readers)) return found;
  for (const ReadEntry& entry : lists_[byte.more_readers]) {
    if (const auto found = look(entry)) return found;
  }
  return std::nullopt;
}

void AccessHistory::add_to_list(ByteHistory& byte, const ReadEntry& entry, int thread) {
  if (byte.more_readers == 0) {
    byte.more_readers = static_cast<std::uint32_t>(lists_.size());
    lists_.emplace_back();
  }
  ReaderList& list = lists_[byte.more_readers];
  ReadEntry* replaceable = nullptr;
  std::size_t num_foreign = 0;
  for (ReadEntry& other : list) {
    if (other.block == entry.block && other.warp == entry.warp && other.step == entry.step) {
      other.lanes |= entry.lanes;
      other.pc = entry.pc;
      return;
    }
    if (entry_ordered(other, thread, other.lanes)) replaceable = &other;
    if (other.block != entry.block && ++num_foreign == kMaxForeignReaders) replaceable = &other;
  }
  if (replaceable != nullptr) {
    *replaceable = entry;
  } else {
    list.push_back(entry);
  }
}

void AccessHistory::add_readers(ByteHistory& byte, const WarpRead& load) {
  const int thread = load.warp * warp_width_ + std::countr_zero(load.lanes);
  const Stamp now = order_.now(thread);
  const auto warp = static_cast<std::uint32_t>(load.warp);
  ReadEntry& first = byte.readers;
  if (first.lanes != 0 && first.block == now.block && first.warp == warp &&
      first.step == now.step) {
    first.lanes |= load.lanes;
    first.pc = load.pc;
    return;
  }
  const ReadEntry entry{load.lanes, load.pc, now.block, now.step, warp};
  // A store that is ordered after this load is ordered after all that one of its readers knows.
  if (first.lanes == 0 || entry_ordered(first, thread, first.lanes)) {
    first = entry;
  } else {
    add_to_list(byte, entry, thread);
  }
}

EarlierAccess AccessHistory::last_write(const ByteHistory& byte) const {
  return {byte.writer, byte.atomic_writer ? AccessKind::kAtomicWrite : AccessKind::kWrite,
          byte.writer_pc};
}

std::optional<EarlierAccess> AccessHistory::access(ByteHistory& byte, int thread, AccessKind kind,
                                                   const void* pc) {
  if (is_race(byte, thread, kind)) return last_write(byte);
  if (kind == AccessKind::kRead) {
    add_readers(
        byte,
        {.warp = thread / warp_width_, .lanes = LaneMask{1} << (thread % warp_width_), .pc = pc});
  } else if (is_write(kind)) {
    if (const auto reader = unordered_reader(byte, thread)) return reader;
    byte.writer = order_.now(thread);
    byte.writer_pc = pc;
    byte.atomic_writer = is_atomic(kind);
    byte.readers.lanes = 0;
    if (byte.more_readers != 0) lists_[byte.more_readers].clear();
  }
  return std::nullopt;
}

std::optional<EarlierAccess> AccessHistory::read(ByteHistory& byte, const WarpRead& load,
                                                 int& reader) {
  if (!order_.known_to_warp(byte.writer, load.warp)) {
    for (LaneMask left = load.lanes; left != 0; left &= left - 1) {
      reader = load.warp * warp_width_ + std::countr_zero(left);
      if (is_race(byte, reader, AccessKind::kRead)) return last_write(byte);
    }
  }
  add_readers(byte, load);
  return std::nullopt;
}

}  // namespace quire::simt::internal
