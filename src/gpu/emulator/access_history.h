// SPDX-License-Identifier: Apache-2.0
// What happened to each byte of shared or global memory: the last store, and the loads since then
// that a later store must be ordered after. Two accesses of different threads, one of them a store,
// that HappensBefore does not order are a race; atomics do not race with atomics. Bytes of a word
// share one history until something touches only some of them.
//
// One store is enough to remember: a second one that it is not ordered before is a race already.
// Loads are kept as (block, warp, step, lanes), one entry until a second warp or an unordered step
// reads the byte.
//
// Thread safety: none; one launch owns it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "gpu/emulator/happens_before.h"

namespace quire::simt::internal {

enum class AccessKind : std::uint8_t { kRead, kWrite, kAtomicRead, kAtomicWrite, kAtomicUpdate };

inline bool is_atomic(AccessKind kind) {
  return kind >= AccessKind::kAtomicRead;
}
inline bool is_write(AccessKind kind) {
  return kind != AccessKind::kRead && kind != AccessKind::kAtomicRead;
}
// An update reads what it replaces.
inline bool is_read(AccessKind kind) {
  return kind != AccessKind::kWrite && kind != AccessKind::kAtomicWrite;
}

// An access of one thread that reached a byte before the one that is looked at.
struct EarlierAccess {
  Stamp stamp = {};
  AccessKind kind = AccessKind::kRead;
  const void* pc = nullptr;
};

// Loads of some lanes of a warp at one of its steps; the pc is that of the last of them.
struct ReadEntry {
  LaneMask lanes = 0;  // 0: no entry
  const void* pc = nullptr;
  std::uint32_t block = 0;
  std::uint32_t step = 0;
  std::uint32_t warp = 0;
};

struct ByteHistory {
  const void* writer_pc = nullptr;
  Stamp writer = {};  // block 0: nobody
  bool atomic_writer = false;
  bool async_pending = false;      // `writer` issued a copy to here that is not over
  std::uint32_t more_readers = 0;  // an index of AccessHistory, 0: none
  ReadEntry readers = {};
};

inline constexpr std::size_t kWordBytes = 4;

struct WordHistory {
  ByteHistory whole;        // of all its bytes, unless they are split
  std::uint32_t split = 0;  // an index of AccessHistory, 0: not split
  std::uint32_t block = 0;  // of shared memory: the block whose history this is
};

class AccessHistory {
 public:
  // Entries of finished blocks are kept in small numbers: one conflict per byte is enough to see.
  static constexpr std::size_t kMaxForeignReaders = 8;

  AccessHistory(const HappensBefore& order, int warp_width);

  // Checks one access of `thread` against the byte's history, then adds it. Returns the access that
  // it races with. REQUIRES: no copy is pending here.
  std::optional<EarlierAccess> access(ByteHistory& byte, int thread, AccessKind kind,
                                      const void* pc);
  // The same for a load by several lanes of a warp at once; `reader` becomes the thread that races.
  struct WarpRead {
    int warp;
    LaneMask lanes;
    const void* pc;
  };
  std::optional<EarlierAccess> read(ByteHistory& byte, const WarpRead& load, int& reader);

  // Calls f(ByteHistory&) for the histories of bytes [begin, begin + bytes) of an array of words,
  // as few of them as there are.
  template <class F>
  void visit(WordHistory* words, std::size_t begin, std::size_t bytes, F&& f) {
    const std::size_t end = begin + bytes;
    while (begin < end) {
      WordHistory& word = words[begin / kWordBytes];
      const std::size_t first = begin % kWordBytes;
      const std::size_t last = std::min(kWordBytes, first + (end - begin));
      if (word.split == 0 && last - first == kWordBytes) {
        f(word.whole);
      } else {
        Split& split = split_of(word);
        for (std::size_t i = first; i < last; ++i) f(split[i]);
      }
      begin += last - first;
    }
  }
  // Forgets what shared memory points to here; its words are reset by their owner.
  void clear() {
    lists_.resize(1);
    splits_.resize(1);
  }

 private:
  using ReaderList = std::vector<ReadEntry>;
  using Split = std::array<ByteHistory, kWordBytes>;

  Split& split_of(WordHistory& word);
  bool is_race(const ByteHistory& byte, int thread, AccessKind kind) const;
  std::optional<EarlierAccess> unordered_reader(const ByteHistory& byte, int thread) const;
  bool entry_ordered(const ReadEntry& entry, int thread, LaneMask lanes) const;
  EarlierAccess last_write(const ByteHistory& byte) const;
  void add_readers(ByteHistory& byte, const WarpRead& load);
  void add_to_list(ByteHistory& byte, const ReadEntry& entry, int thread);

  const HappensBefore& order_;
  int warp_width_;
  std::vector<ReaderList> lists_;  // [0] stays empty
  std::deque<Split> splits_;       // [0] is not used
};

}  // namespace quire::simt::internal
