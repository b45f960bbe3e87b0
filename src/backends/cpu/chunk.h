// SPDX-License-Identifier: Apache-2.0
// Where the keys of one chunk lie, for all kv heads, and a walk over that memory in its own order:
// what is read next is fetched while this chunk is computed. Memory gives random pieces of 8 KB at
// half of its rate, whole blocks of all heads nearly at full rate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/attend_call.h"
#include "layout/kv_offset.h"

namespace quire::cpu {

inline constexpr std::int64_t kAbsent = -1;

// Keys first + [begin, end) of one sequence; first is a multiple of the width. Offsets are those of
// head 0 and dim 0, kAbsent for keys outside the range and for those that no query may see.
struct Chunk {
  std::int64_t width = 0;  // kChunk, twice that, or kMaxChunk
  std::int64_t first = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool complete = false;            // no key of the width is absent
  std::int64_t k[kMaxChunk];        // element offsets into cache.k
  std::int64_t v[kMaxChunk];        // into cache.v
  std::int64_t k_scale[kMaxChunk];  // into the scales of K, where every key has its own
  std::int64_t v_scale[kMaxChunk];
  std::int64_t block[kMaxChunk];

  bool whole() const noexcept { return begin == 0 && end == width; }
};

// Finds the keys `keys` of a sequence, all inside one chunk of the width.
void locate(const AttendCall& call, std::int64_t sequence, const KeyRange& keys, std::int64_t width,
            Chunk& chunk) noexcept;

// Ranges of memory, in the order in which they are to be fetched; what there is no room for is not.
class Pieces {
 public:
  // `count` ranges of `bytes`, `stride` apart.
  struct Piece {
    const char* data;
    std::int64_t count;
    std::int64_t stride;
    std::int64_t bytes;
    std::int64_t head_stride;  // bytes from one kv head to the next
  };

  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  int size() const noexcept { return size_; }
  const Piece& operator[](int i) const noexcept { return pieces_[i]; }
  void clear() noexcept { size_ = 0; }

  // The keys of a located chunk, of the kv heads given: of every block all K, then all V.
  void add_chunk(const AttendCall& call, const Chunk& chunk, const IndexRange& kv_heads) noexcept;
  // K or V of kv head 0.
  void add_first_head(const AttendCall& call, const Chunk& chunk, KvTensor tensor) noexcept;
  // The same of another head.
  void add_head(const Pieces& first_head, std::int64_t kv_head) noexcept;
  // Rows of one kv head of a sequence in q or out, if they lie side by side.
  void add_rows(const AttendCall& call, const TensorView& tensor, std::int64_t sequence,
                std::int64_t kv_head, const IndexRange& rows) noexcept;

  static constexpr int kMaxRowPieces = 8;
  static constexpr int kMaxPieces = 4 * kMaxChunk + kMaxRowPieces;  // K, V, their scales; rows

 protected:
  Pieces(Piece* pieces, int capacity) noexcept : pieces_(pieces), capacity_(capacity) {}
  ~Pieces() = default;

 private:
  void add_tokens(const KvCacheView& cache, KvTensor tensor, std::int64_t offset,
                  std::int64_t tokens, const IndexRange& kv_heads) noexcept;
  void add_scales(const KvScales& scales, std::int64_t offset, std::int64_t tokens,
                  const IndexRange& kv_heads) noexcept;
  void add(const Piece& piece) noexcept;

  Piece* const pieces_;
  const int capacity_;
  int size_ = 0;
};

template <int kCapacity>
class PiecesOf final : public Pieces {
 public:
  PiecesOf() noexcept : Pieces(storage_, kCapacity) {}

 private:
  Piece storage_[kCapacity];
};

// The cache lines of pieces, one after the other.
//
// Some processors forget a prefetch that finds all buffers for misses taken. Products of what lies
// in a near cache ask for lines faster than memory gives them: at 60 GB/s a core of Zen5 lost every
// fourth, and a lost line keeps the products waiting for all of the way to memory. There loops that
// keep a cursor ask for each line four times, a little later each time, and into the first cache;
// what has come costs them little. 16x4096 with blocks of 32 on two threads of Zen5: once 65 % of
// what plain reads give, into the first cache 71 %, three times 76 %, four times 80 to 84 %. Loops
// that leave more time, those without a cursor among them, ask once.
class PrefetchWalk {
 public:
  // `once`: no line is asked for again.
  explicit PrefetchWalk(const AttendCall& call, bool once = false) noexcept
      : drops_(call.drops_prefetches),
        again_(drops_ && !once),
        in_stretches_(again_ && call.cache.format.layout == KvLayoutId::kPlain) {}

  // What is to be fetched. REQUIRES: what is added is not begun: clear() was called, and no step
  // since.
  Pieces& pieces() noexcept { return pieces_; }
  void clear() noexcept {
    pieces_.clear();
    piece_ = 0, left_ = 0, line_ = end_ = range_end_ = nullptr;
  }
  // A head more behind what is left.
  void add_head(const Pieces& first_head, std::int64_t kv_head) noexcept {
    if (pieces_.size() + first_head.size() > Pieces::kMaxPieces) finish();
    if (all_begun()) pieces_.clear(), piece_ = 0;
    pieces_.add_head(first_head, kv_head);
  }
  // The first line of every piece, unless they are many: their pages are looked up side by side.
  // Later each of them would keep the products waiting for some 0.1 us.
  void touch() const noexcept {
    if (pieces_.size() > kMaxTouched) return;
    for (int i = 0; i < pieces_.size(); ++i) __builtin_prefetch(pieces_[i].data, 0, 2);
  }

  bool done() const noexcept { return line_ == end_ && all_begun(); }
  [[gnu::always_inline]] void step() noexcept {
    if (line_ == end_ && !advance()) return;
    if (in_stretches_) [[unlikely]] {
      fetch_again<1>(line_, begin_, earlier_);
    } else if (again_) [[unlikely]] {
      fetch_again<1>(line_, begin_);
    } else {
      __builtin_prefetch(line_, 0, 2);
    }
    line_ += kLine;
  }

  // Several at once, most of them inside one range.
  template <int kCount>
  [[gnu::always_inline]] void steps() noexcept {
    if (end_ - line_ >= kCount * kLine) {
      for (int i = 0; i < kCount; ++i) __builtin_prefetch(line_ + i * kLine, 0, 2);
      line_ += kCount * kLine;
      return;
    }
    if (done()) return;
    for (int i = 0; i < kCount; ++i) step();
  }

  // Some lines while a row is softened and nothing is read, which would leave memory idle: 3 % of
  // the time of one core of Zen5. Loops that ask again leave out as many for four rows.
  [[gnu::always_inline]] void step_between_rows() noexcept {
    constexpr int kLines = 4;
    if (end_ - line_ < kLines * kLine) return;
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(line_ + i * kLine, 0, 3);
    line_ += kLines * kLine;
  }

  // What is left: those who fetch as much as they read count neither scales nor parts of lines.
  void finish() noexcept {
    while (!done()) step();
  }

  // What the processor does: the same for every item of a call.
  bool drops_prefetches() const noexcept { return drops_; }
  bool asks_again() const noexcept { return again_; }

  // Bytes from a line to what was asked for about so many bytes before it.
  struct Earlier {
    std::int64_t by_4_kb = 0;
    std::int64_t by_12_kb = 0;
  };

  // How a loop fetches: as the processor wants it, or what that is where the loop is compiled for
  // it, because a branch in it costs as much as the lines.
  enum class Way : std::uint8_t { kAny, kOnce, kOnceNear, kAgain };

  // The place in the walk, for a loop that keeps it in registers: through memory every step would
  // wait for the one before. Only one at a time.
  template <Way kWay>
  class CursorOf {
   public:
    // `passes` loops go over the same keys, and each fetches its share.
    explicit CursorOf(PrefetchWalk& walk, int passes = 1) noexcept
        : walk_(walk),
          line_(walk.line_),
          begin_(walk.begin_),
          earlier_(walk.earlier_),
          end_(walk.end_),
          again_(walk.again_),
          in_stretches_(walk.in_stretches_),
          more_(!walk.done()),
          passes_(passes),
          left_(passes) {}
    CursorOf(const CursorOf&) = delete;
    CursorOf& operator=(const CursorOf&) = delete;
    [[gnu::always_inline]] ~CursorOf() { walk_.line_ = line_; }

    // True every passes-th time.
    [[gnu::always_inline]] bool turn() noexcept {
      if (--left_ > 0) return false;
      left_ = passes_;
      return true;
    }

    // This loop's share of kLines, one at a time: two every second time took longer. A part of a
    // line is left to finish(). With kLeavesOut, as many less as step_between_rows() fetches.
    template <int kLines, bool kLeavesOut>
    [[gnu::always_inline]] void share() noexcept {
      if (passes_ == 1) {
        if constexpr (kWay == Way::kAgain && kLeavesOut) {
          if (++num_shares_ % kSharesToOneLeftOut == 0) return;
        }
        step<kLines>();
        return;
      }
      if constexpr (kLines % 2 == 0) {
        if (passes_ == 2) {
          step<kLines / 2>();
          return;
        }
      }
      for (due_ += kLines; due_ >= passes_; due_ -= passes_) step<1>();
    }

    template <int kLines>
    [[gnu::always_inline]] void step() noexcept {
      if (end_ - line_ >= kLines * kLine) [[likely]] {
        fetch<kLines>();
        line_ += kLines * kLine;
      } else if (more_) {
        step_across<kLines>();
      }
    }

   private:
    // K and V of 64 keys in bf16 are 512 lines, or 128 shares; see step_between_rows().
    static constexpr unsigned kSharesToOneLeftOut = 32;

    // Not a call: that would cost the loop all its registers, every 2 KB where each key is a block.
    template <int kLines>
    [[gnu::always_inline]] void step_across() noexcept {
      for (int i = 0; i < kLines; ++i) {
        if (line_ == end_) {
          more_ = walk_.advance();
          if (!more_) return;
          line_ = begin_ = walk_.begin_;
          earlier_ = walk_.earlier_;
          end_ = walk_.end_;
        }
        fetch<1>();
        line_ += kLine;
      }
    }
    template <int kLines>
    [[gnu::always_inline]] void fetch() const noexcept {
      if (kWay == Way::kAny && in_stretches_) {
        fetch_again<kLines>(line_, begin_, earlier_);
      } else if (kWay == Way::kAgain || (kWay == Way::kAny && again_)) {
        fetch_again<kLines>(line_, begin_);
      } else {
        constexpr int kHint = kWay == Way::kOnceNear ? 3 : 2;
        for (int i = 0; i < kLines; ++i) __builtin_prefetch(line_ + i * kLine, 0, kHint);
      }
    }

    PrefetchWalk& walk_;
    const char* line_;
    const char* begin_;
    Earlier earlier_;
    const char* end_;
    const bool again_;
    const bool in_stretches_;
    bool more_;
    const int passes_;
    int left_;     // calls of turn() until it is this one's
    int due_ = 0;  // to share(), in parts of a line
    unsigned num_shares_ = 0;
  };
  using Cursor = CursorOf<Way::kAny>;

 private:
  static constexpr std::int64_t kLine = 64;
  // A stretch is what a cursor walks without asking for more: a range, or with in_stretches_ at
  // most this much of it.
  static constexpr std::int64_t kStretchBytes = 4 << 10;
  static constexpr unsigned kMaxBegins = 16;

  // Lines of a range, and those that were asked for 1, 4 and 12 KB ago; at its begin those are its
  // first ones. Going on with the end of the range before took longer (83 -> 78 % there), and so
  // did reading all lines before they are used.
  template <int kCount>
  [[gnu::always_inline]] static void fetch_again(const char* line, const char* begin) noexcept {
    fetch_four<kCount>(line, line - std::min<std::int64_t>(line - begin, 1 << 10),
                       line - std::min<std::int64_t>(line - begin, 4 << 10),
                       line - std::min<std::int64_t>(line - begin, 12 << 10));
  }
  // The same of short ranges, where 4 and 12 KB ago it was another, found among the last
  // kMaxBegins: of pieces of 2 KB 57 -> 63 % of plain reads on one thread, of 32 KB 65 -> 70 %.
  template <int kCount>
  [[gnu::always_inline]] static void fetch_again(const char* line, const char* begin,
                                                 const Earlier& earlier) noexcept {
    fetch_four<kCount>(line, line - std::min<std::int64_t>(line - begin, 1 << 10),
                       line + earlier.by_4_kb, line + earlier.by_12_kb);
  }
  template <int kCount>
  [[gnu::always_inline]] static void fetch_four(const char* line, const char* second,
                                                const char* third, const char* fourth) noexcept {
    for (int i = 0; i < kCount; ++i) {
      __builtin_prefetch(fourth + i * kLine, 0, 3);
      __builtin_prefetch(line + i * kLine, 0, 3);
      __builtin_prefetch(second + i * kLine, 0, 3);
      __builtin_prefetch(third + i * kLine, 0, 3);
    }
  }

  // Nothing is left but what line_ has not reached.
  bool all_begun() const noexcept {
    return end_ == range_end_ && left_ == 0 && piece_ == pieces_.size();
  }
  // Begins the next stretch, if there is one.
  [[gnu::always_inline]] bool advance() noexcept {
    if (end_ == range_end_ && !begin_range()) return false;
    begin_ = line_ = end_;
    end_ = range_end_;
    if (in_stretches_) begin_stretch();
    return true;
  }
  [[gnu::always_inline]] bool begin_range() noexcept {
    if (left_ > 0) {
      range_ += pieces_[piece_ - 1].stride;
    } else if (piece_ < pieces_.size()) {
      left_ = pieces_[piece_].count;
      range_ = pieces_[piece_++].data;
    } else {
      return false;
    }
    --left_;
    const std::int64_t before = reinterpret_cast<std::uintptr_t>(range_) % kLine;
    end_ = range_ - before;
    range_end_ = end_ + round_up(before + pieces_[piece_ - 1].bytes, kLine);
    return true;
  }
  // Ends it after kStretchBytes, and finds what was begun 4 and 12 KB earlier if stretches are all
  // as long as this one.
  [[gnu::always_inline]] void begin_stretch() noexcept {
    const std::int64_t bytes = std::min(range_end_ - begin_, kStretchBytes);
    end_ = begin_ + bytes;
    begins_[num_begun_ % kMaxBegins] = begin_;
    const auto distance = [&](std::int64_t to) {
      const auto back =
          static_cast<unsigned>(std::clamp<std::int64_t>(to / bytes, 1, kMaxBegins - 1));
      return back > num_begun_ ? 0 : begins_[(num_begun_ - back) % kMaxBegins] - begin_;
    };
    earlier_ = {distance(4 << 10), distance(12 << 10)};
    ++num_begun_;
  }

  static constexpr int kMaxTouched = 8;

  PiecesOf<Pieces::kMaxPieces> pieces_;
  int piece_ = 0;          // the one after the current
  std::int64_t left_ = 0;  // ranges of the current one not begun
  const bool drops_;
  const bool again_;
  const bool in_stretches_;  // asks again across ranges: those of plain layouts may be short
  const char* range_ = nullptr;
  const char* range_end_ = nullptr;  // behind its last line
  const char* begin_ = nullptr;      // the first line of the stretch
  const char* line_ = nullptr;
  const char* end_ = nullptr;
  Earlier earlier_;
  unsigned num_begun_ = 0;  // stretches
  const char* begins_[kMaxBegins] = {};
};

}  // namespace quire::cpu
