// SPDX-License-Identifier: Apache-2.0
// C[rows][columns] (+)= A[rows][k] B[k][columns] over vectors of columns, once for every level and
// every source of B. K^T (columns are keys, k are dims) and V (columns are dims, k are keys) have
// the same form, so this is both QK and PV.
//
// k goes in steps of two, as the pair-tiled layout stores it. A source of B has
//   num_segments        runs of `pairs` steps
//   at<n>(segment, vector).load(v, pair)     Ops::Pair of columns vector + v, step `pair`
//   kReadOften          is it read again for other rows?
//   kFetchBytes         of what is read next, to fetch with a vector of a step
// Ops says what A holds and how a step is multiplied, in kHalves parts: operand<half>(pair) and
// broadcast<half>(a) go into one madd. F32 has two, each one fused multiply-add; the columns of one
// are loaded after those of the other are done with, or the accumulators would not stay in
// registers.

// Where in a step of kSlots rows and halves to fetch its lines of what is read next: spread evenly.
// Loads that find their line near wait behind those that do not; a line at a time is 3 % faster
// than four with AVX-512.
template <int kLines, int kSlots>
struct FetchSlots {
  static constexpr int kAtOnce = kLines > kSlots ? kLines / kSlots : 1;
  static constexpr bool fetches_at(int slot) noexcept {
    constexpr int kTimes = kLines / kAtOnce;
    return (slot + 1) * kTimes / kSlots > slot * kTimes / kSlots;
  }
};

// Of one block: kRows x kVectors accumulators in registers. Fetches kFetchBytes of what is read
// next at every step, or a line in every n-th step. Where B lies in the cache that is as much as is
// read, shared out among the `passes` blocks of rows that read it: twice as much for half of the
// time took a quarter longer with AVX2. From a panel, which is read many times, the first blocks of
// rows fetch everything and the others nothing.
template <class Ops, int kRows, int kVectors, int kFetchBytes, class B>
void multiply_block(const typename Ops::A* a, std::int64_t a_stride, const B& b,
                    std::int64_t vector, float* c, std::int64_t c_stride, bool from_zero,
                    PrefetchWalk& ahead, int passes) noexcept {
  Vec sum[kRows][kVectors];
  c += vector * kLanes;
  if (from_zero) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
    }
  } else {
    const float* row = c;
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r, row += c_stride) {
      QUIRE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(row + v * kLanes);
    }
  }
  using Slots = FetchSlots<kFetchBytes / 64, Ops::kHalves * kRows>;
  PrefetchWalk::Cursor fetch(ahead, passes);
  for (std::int64_t segment = 0; segment < b.num_segments; ++segment) {
    const auto columns = b.template at<kVectors>(segment, vector);
    for (std::int64_t pair = 0; pair < b.pairs; ++pair, a += 2) {
      const bool fetches = kFetchBytes >= 64 && fetch.turn();
      const auto multiply_half = [&]<int kHalf>() QUIRE_INLINE_LAMBDA {
        typename Ops::Operand x[kVectors];
        QUIRE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          x[v] = Ops::template operand<kHalf>(columns.load(v, pair));
        }
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const typename Ops::Operand factor = Ops::template broadcast<kHalf>(a + r * a_stride);
          QUIRE_UNROLL
          for (int v = 0; v < kVectors; ++v) sum[r][v] = Ops::madd(sum[r][v], x[v], factor);
          if constexpr (kFetchBytes >= 64) {
            if (Slots::fetches_at(kHalf * kRows + r) && fetches) {
              fetch.template step<Slots::kAtOnce>();
            }
          }
        }
      };
      multiply_half.template operator()<0>();
      if constexpr (Ops::kHalves == 2) multiply_half.template operator()<1>();
      if constexpr (kFetchBytes > 0 && kFetchBytes < 64) {
        if (pair % (64 / kFetchBytes) == 0 && fetch.turn()) fetch.template step<1>();
      }
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r, c += c_stride) {
    QUIRE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(c + v * kLanes, sum[r][v]);
  }
}

// All rows of a range of kVectors vectors, in blocks of kMaxRows (6, or 8 with half the vectors),
// 4, 2 and 1. Few blocks, as each is compiled for every level, source and format.
template <class Ops, int kMaxRows, int kVectors, class B>
void multiply_columns(const typename Ops::A* a, std::int64_t a_stride, std::int64_t rows,
                      const B& b, std::int64_t vector, float* c, std::int64_t c_stride,
                      bool from_zero, PrefetchWalk& ahead) noexcept {
  std::int64_t r = 0;
  const int passes = B::kReadOften ? 1 : static_cast<int>((rows + kMaxRows - 1) / kMaxRows);
  const auto blocks_until = [&]<int kRows>(std::int64_t end) {
    for (; r + kRows <= end; r += kRows) {
      const auto block = [&]<int kFetchBytes>() {
        multiply_block<Ops, kRows, kVectors, kFetchBytes>(a + r * a_stride, a_stride, b, vector,
                                                          c + r * c_stride, c_stride, from_zero,
                                                          ahead, passes);
      };
      if constexpr (B::kReadOften) {
        if (ahead.done()) {
          block.template operator()<0>();
          continue;
        }
      }
      block.template operator()<kVectors * B::kFetchBytes>();
    }
  };
  // Two rows behind a large block go better with its six or eight as blocks of four.
  std::int64_t large_end = rows / kMaxRows * kMaxRows;
  if (rows - large_end == 2 && large_end > 0) large_end -= kMaxRows;
  blocks_until.template operator()<kMaxRows>(large_end);
  blocks_until.template operator()<4>(rows);
  if constexpr (kVectors > 1) blocks_until.template operator()<2>(rows);
  blocks_until.template operator()<1>(rows);
}

template <class Ops, class B>
void multiply_vectors(const typename Ops::A* a, std::int64_t a_stride, std::int64_t rows,
                      const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                      bool from_zero, PrefetchWalk& ahead) noexcept {
  constexpr int kWide = Ops::kVectors;
  constexpr int kHalf = kWide / 2;
  std::int64_t vector = 0;
  if (rows != 8) {
    for (; vector + kWide <= num_vectors; vector += kWide) {
      multiply_columns<Ops, 6, kWide>(a, a_stride, rows, b, vector, c, c_stride, from_zero, ahead);
    }
  }
  // Eight rows in one pass, so that nothing is converted twice; and what is left.
  for (; vector + kHalf <= num_vectors; vector += kHalf) {
    multiply_columns<Ops, 8, kHalf>(a, a_stride, rows, b, vector, c, c_stride, from_zero, ahead);
  }
  for (; kHalf > 1 && vector < num_vectors; ++vector) {
    multiply_columns<Ops, 4, 1>(a, a_stride, rows, b, vector, c, c_stride, from_zero, ahead);
  }
}

// Up to eight rows of A, step after step; eight by addresses of four registers. With one for each
// row gcc runs out of them and keeps some in vectors, where reading one waits behind all products:
// a bare loop of 16 rows over V of 64 keys took 7 % longer.
template <class A, int kRows>
class RowCursor {
 public:
  RowCursor(const A* a, std::int64_t a_stride) noexcept
      : stride_(a_stride * static_cast<std::int64_t>(sizeof(A))),
        zero_(reinterpret_cast<const char*>(a)),
        three_(kRows > 3 ? zero_ + 3 * stride_ : zero_),
        six_(kRows > 6 ? zero_ + 6 * stride_ : zero_) {
    keep_apart();
  }
  QUIRE_INLINE const A* row(int r) const noexcept {
    const char* base = r == 6 ? six_ : r == 3 || r > 4 ? three_ : zero_;
    const int distance = r == 6 ? 0 : r == 3 || r > 4 ? r - 3 : r;  // 0, 1, 2 or 4: an address
    return reinterpret_cast<const A*>(base + distance * stride_);
  }
  QUIRE_INLINE void advance(int steps) noexcept {
    zero_ += steps * kStepBytes;
    three_ += steps * kStepBytes;
    six_ += steps * kStepBytes;
    keep_apart();
  }

 private:
  static constexpr std::int64_t kStepBytes = 4;  // two numbers of 16 bits or four of 8
  // The compiler must not know that one follows from the other.
  QUIRE_INLINE void keep_apart() noexcept {
    if constexpr (kRows == 8) asm("" : "+r"(stride_), "+r"(zero_), "+r"(three_), "+r"(six_));
  }

  std::int64_t stride_;
  const char* zero_;
  const char* three_;
  const char* six_;
};

// Few rows over a source that lies in tiles: kColumns vectors of columns after the others, kRows
// sums of each, in kSplit parts for every kSplit-th step, so that B is read nearly in the order in
// which it lies. Memory and the caches give most to who reads them so: 12.4 instead of 14.4 ms for
// decode on one core of Zen4. `passes` is how many such blocks of rows read the same columns; each
// fetches its share of what is read next.
//
// With kParts above 1 a number of A is the sum of several, which lie Ops::kPart apart. A step is
// Ops::kPairsOfStep pairs.
template <class Ops, int kRows, int kParts, int kSplit, int kColumns, PrefetchWalk::Way kWay,
          class B>
void stream_rows(const typename Ops::A* a, std::int64_t a_stride, const B& b,
                 const IndexRange& vectors, float* c, std::int64_t c_stride, bool from_zero,
                 int passes, PrefetchWalk& ahead) noexcept {
  constexpr int kPairs = Ops::kPairsOfStep;
  constexpr int kLines = std::max(1, kColumns * kSplit * kPairs * B::kFetchBytes / 64);
  PrefetchWalk::CursorOf<kWay> fetch(ahead, passes);
  c += vectors.begin * kLanes;
  for (std::int64_t vector = vectors.begin; vector < vectors.end;
       vector += kColumns, c += kColumns * kLanes) {
    typename Ops::Sum sum[kRows][kColumns][kParts][kSplit];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int i = 0; i < kColumns * kParts * kSplit; ++i) {
        sum[r][i / (kParts * kSplit)][i / kSplit % kParts][i % kSplit] = Ops::no_sum();
      }
    }
    RowCursor<typename Ops::A, kRows> rows(a, a_stride);
    for (std::int64_t segment = 0; segment < b.num_segments; ++segment) {
      const auto columns = b.template at<kColumns>(segment, vector);
      const auto multiply_steps = [&]<int kSteps>(std::int64_t pair) QUIRE_INLINE_LAMBDA {
        typename Ops::Pair x[kColumns][kSteps];
        QUIRE_UNROLL
        for (int i = 0; i < kColumns; ++i) Ops::load_steps(columns.place(i, pair), x[i]);
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          QUIRE_UNROLL
          for (int i = 0; i < kParts * kSteps; ++i) {
            const int part = i / kSteps;
            const int k = i % kSteps;
            const auto factor = Ops::step_of_row(rows.row(r) + part * Ops::kPart, k);
            QUIRE_UNROLL
            for (int j = 0; j < kColumns; ++j) {
              sum[r][j][part][k] = Ops::add_products(sum[r][j][part][k], x[j][k], factor);
            }
          }
        }
        rows.advance(kSteps);
      };
      std::int64_t pair = 0;
      if constexpr (kRows == 8) {
        for (; pair + 2 * kSplit * kPairs <= b.pairs; pair += 2 * kSplit * kPairs) {
          multiply_steps.template operator()<kSplit>(pair);
          multiply_steps.template operator()<kSplit>(pair + kSplit * kPairs);
          fetch.template share<2 * kLines, Ops::kFetchesWhileSoftening>();
        }
      }
      for (; pair + kSplit * kPairs <= b.pairs; pair += kSplit * kPairs) {
        multiply_steps.template operator()<kSplit>(pair);
        fetch.template share<kLines, Ops::kFetchesWhileSoftening>();
      }
      if constexpr (kSplit > 1) {
        for (; pair < b.pairs; pair += kPairs) multiply_steps.template operator()<1>(pair);
      }
    }
    float* place = c;
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r, place += c_stride) {
      QUIRE_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const Vec total = Ops::total(sum[r][j], a + r * a_stride, a_stride);
        float* out = place + j * kLanes;
        store(out, from_zero ? total : add(load(out), total));
      }
    }
  }
}

// All of up to four sums.
template <class Ops, int kCount>
QUIRE_INLINE typename Ops::Sum add_up(const typename Ops::Sum (&x)[kCount]) noexcept {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  if constexpr (kCount == 1) return x[0];
  if constexpr (kCount == 2) return Ops::add_sums(x[0], x[1]);
  if constexpr (kCount == 4) {
    return Ops::add_sums(Ops::add_sums(x[0], x[1]), Ops::add_sums(x[2], x[3]));
  }
}

// Few rows go through the same columns in blocks of 8, 4, 2 and 1.
constexpr int num_row_blocks(std::int64_t rows) noexcept {
  return static_cast<int>(rows / 8 + rows % 8 / 4 + rows % 4 / 2 + rows % 2);
}
// Calls multiply<kRows>(first row) for each of them.
template <class Multiply>
QUIRE_INLINE void for_row_blocks(std::int64_t rows, Multiply&& multiply) noexcept {
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) multiply.template operator()<8>(r);
  if (r + 4 <= rows) multiply.template operator()<4>(r), r += 4;
  if (r + 2 <= rows) multiply.template operator()<2>(r), r += 2;
  if (r < rows) multiply.template operator()<1>(r);
}

template <class Ops, int kParts, class B>
void multiply_streamed(const typename Ops::A* a, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
  for_row_blocks(rows, [&]<int kRows>(std::int64_t r) {
    constexpr int kSums = kRows * kParts;
    constexpr int kSplit = kSums > 8 ? 1 : kSums > 4 ? 2 : 4;  // up to 24 sums in registers
    using Way = PrefetchWalk::Way;
    const auto stream = [&]<Way kWay>() {
      const auto columns = [&]<int kColumns, int kSteps>(const IndexRange& vectors) {
        stream_rows<Ops, kRows, kParts, kSteps, kColumns, kWay>(
            a + r * a_stride, a_stride, b, vectors, c + r * c_stride, c_stride, from_zero,
            num_row_blocks(rows), ahead);
      };
      // Each factor that is loaded goes into two products where these are as fast as loads: 13.7 to
      // 12.4 ms for 16 rows on one core of Zen5. On Zen4 it is 3 % slower. The order of sums
      // depends on it, so that it must be the same for all items of a batch.
      std::int64_t vector = 0;
      if constexpr (kWay != Way::kOnce && kSums >= 4 && kSplit > 1) {
        vector = num_vectors / 2 * 2;
        columns.template operator()<2, kSplit / 2>({0, vector});
      }
      columns.template operator()<1, kSplit>({vector, num_vectors});
    };
    // Several passes over the same keys take longer, so that fewer lines are forgotten.
    if (!ahead.drops_prefetches()) {
      stream.template operator()<Way::kOnce>();
    } else if (num_row_blocks(rows) > 1 || !ahead.asks_again()) {
      stream.template operator()<Way::kOnceNear>();
    } else {
      stream.template operator()<Way::kAgain>();
    }
  });
}

// A panel in scratch.
template <class Ops>
struct PanelSource {
  const typename Ops::Panel* data;
  std::int64_t stride;  // columns
  std::int64_t pairs;
  static constexpr std::int64_t num_segments = 1;
  static constexpr bool kReadOften = true;
  static constexpr int kFetchBytes = 64;

  struct Columns {
    const typename Ops::Panel* data;
    std::int64_t stride;
    std::int64_t column;
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_panel(data, stride, pair, column + v * kLanes);
    }
  };
  template <int kVectors>
  QUIRE_INLINE Columns at(std::int64_t /*segment*/, std::int64_t vector) const noexcept {
    return {data, stride, vector * kLanes};
  }
};

// Vectors of one tile of 16 pairs of elements.
inline constexpr std::int64_t kTileVectors = kPairTile / kLanes;

// K of the pair-tiled layout: a tile is 16 keys, a row of it two dims.
template <class Ops, class T>
struct TiledKeys {
  const T* const* units;  // of 16 keys each
  std::int64_t pairs;     // head_dim / 2
  static constexpr std::int64_t num_segments = 1;
  static constexpr bool kReadOften = false;
  static constexpr int kFetchBytes = static_cast<int>(2 * kLanes * sizeof(T));

  template <int kVectors>
  struct Columns {
    const T* tile[kVectors];
    QUIRE_INLINE const T* place(int v, std::int64_t pair) const noexcept {
      return tile[v] + pair * (2 * kPairTile);
    }
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_tile(place(v, pair));
    }
  };
  template <int kVectors>
  QUIRE_INLINE Columns<kVectors> at(std::int64_t /*segment*/, std::int64_t vector) const noexcept {
    Columns<kVectors> columns;
    QUIRE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      columns.tile[v] =
          units[(vector + v) / kTileVectors] + (vector + v) % kTileVectors * (2 * kLanes);
    }
    return columns;
  }
};

// V of the pair-tiled layout: a tile is 16 dims, a row of it two keys; a segment is 16 keys.
template <class Ops, class T>
struct TiledValues {
  const T* const* units;     // of 16 keys each
  std::int64_t tile_stride;  // elements from 16 dims to the next
  std::int64_t num_segments;
  static constexpr std::int64_t pairs = kPairTile / 2;
  static constexpr bool kReadOften = false;
  static constexpr int kFetchBytes = static_cast<int>(2 * kLanes * sizeof(T));

  struct Columns {
    const T* first;
    std::int64_t tile_stride;
    QUIRE_INLINE const T* place(int v, std::int64_t pair) const noexcept {
      return first + v / kTileVectors * tile_stride + v % kTileVectors * (2 * kLanes) +
             pair * (2 * kPairTile);
    }
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_tile(place(v, pair));
    }
  };
  template <int kVectors>
  QUIRE_INLINE Columns at(std::int64_t segment, std::int64_t vector) const noexcept {
    // A block of vectors begins with a tile, or is one vector.
    return {
        units[segment] + vector / kTileVectors * tile_stride + vector % kTileVectors * (2 * kLanes),
        tile_stride};
  }
};

// V of a plain layout: a row of dims for each key.
template <class Ops, class T>
struct PlainValues {
  const T* const* rows;  // [2 * pairs]
  std::int64_t pairs;
  static constexpr std::int64_t num_segments = 1;
  static constexpr bool kReadOften = false;
  static constexpr int kFetchBytes = static_cast<int>(2 * kLanes * sizeof(T));

  struct Columns {
    const T* const* rows;
    std::int64_t column;
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_tokens(rows[2 * pair] + column + v * kLanes,
                              rows[2 * pair + 1] + column + v * kLanes);
    }
  };
  template <int kVectors>
  QUIRE_INLINE Columns at(std::int64_t /*segment*/, std::int64_t vector) const noexcept {
    return {rows, vector * kLanes};
  }
};
