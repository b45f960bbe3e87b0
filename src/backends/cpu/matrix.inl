// SPDX-License-Identifier: Apache-2.0
// C[rows][columns] (+)= A[rows][k] B[k][columns] over vectors of columns, once for every level and
// every source of B. K^T (columns are keys, k are dims) and V (columns are dims, k are keys) have
// the same form, so this is both QK and PV.
//
// k goes in steps of two, as the pair-tiled layout stores it. A source of B has
//   num_segments        runs of `pairs` steps
//   at<n>(segment, vector).load(v, pair)     Ops::Pair of columns vector + v, step `pair`
// Ops says what A holds and how a pair is multiplied (F32: two fused multiply-adds).

// Of one block: kRows x kVectors accumulators in registers. Fetches what is read next as it goes.
template <class Ops, int kRows, int kVectors, class B>
inline void multiply_block(const typename Ops::A* a, std::int64_t a_stride, const B& b,
                           std::int64_t vector, float* c, std::int64_t c_stride, bool from_zero,
                           PrefetchWalk& ahead) noexcept {
  Vec sum[kRows][kVectors];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = from_zero ? zero() : load(c + r * c_stride + (vector + v) * kLanes);
    }
  }
  for (std::int64_t segment = 0; segment < b.num_segments; ++segment) {
    const auto columns = b.template at<kVectors>(segment, vector);
    for (std::int64_t pair = 0; pair < b.pairs; ++pair, a += 2) {
      typename Ops::Pair x[kVectors];
      QUIRE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        x[v] = columns.load(v, pair);
        ahead.step();
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename Ops::Factor factor = Ops::broadcast(a + r * a_stride);
        QUIRE_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Ops::madd(sum[r][v], x[v], factor);
      }
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(c + r * c_stride + (vector + v) * kLanes, sum[r][v]);
  }
}

// All rows of a range of kVectors vectors, in blocks of 6, 4, 2 and 1.
template <class Ops, int kVectors, class B>
inline void multiply_columns(const typename Ops::A* a, std::int64_t a_stride, std::int64_t rows,
                             const B& b, std::int64_t vector, float* c, std::int64_t c_stride,
                             bool from_zero, PrefetchWalk& ahead) noexcept {
  std::int64_t r = 0;
  const auto block = [&]<int kRows>() {
    multiply_block<Ops, kRows, kVectors>(a + r * a_stride, a_stride, b, vector, c + r * c_stride,
                                         c_stride, from_zero, ahead);
    r += kRows;
  };
  while (r < rows) {
    const std::int64_t left = rows - r;
    if (left >= 6 && left != 8) {
      block.template operator()<6>();
    } else if (left >= 4) {
      block.template operator()<4>();
    } else if (left >= 2) {
      block.template operator()<2>();
    } else {
      block.template operator()<1>();
    }
  }
}

template <class Ops, class B>
void multiply_vectors(const typename Ops::A* a, std::int64_t a_stride, std::int64_t rows,
                      const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                      bool from_zero, PrefetchWalk& ahead) noexcept {
  std::int64_t vector = 0;
  for (; vector + Ops::kVectors <= num_vectors; vector += Ops::kVectors) {
    multiply_columns<Ops, Ops::kVectors>(a, a_stride, rows, b, vector, c, c_stride, from_zero,
                                         ahead);
  }
  for (; vector < num_vectors; ++vector) {
    multiply_columns<Ops, 1>(a, a_stride, rows, b, vector, c, c_stride, from_zero, ahead);
  }
}

// A panel in scratch.
template <class Ops>
struct PanelSource {
  const typename Ops::Panel* data;
  std::int64_t stride;  // columns
  std::int64_t pairs;
  static constexpr std::int64_t num_segments = 1;

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
  const T* units[kMaxChunk / kPairTile];
  std::int64_t pairs;  // head_dim / 2
  static constexpr std::int64_t num_segments = 1;

  template <int kVectors>
  struct Columns {
    const T* tile[kVectors];
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_tile(tile[v] + pair * (2 * kPairTile));
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
  const T* units[kMaxChunk / kPairTile];
  std::int64_t tile_stride;  // elements from 16 dims to the next
  std::int64_t num_segments;
  static constexpr std::int64_t pairs = kPairTile / 2;

  struct Columns {
    const T* first;
    std::int64_t tile_stride;
    QUIRE_INLINE typename Ops::Pair load(int v, std::int64_t pair) const noexcept {
      return Ops::load_tile(first + v / kTileVectors * tile_stride +
                            v % kTileVectors * (2 * kLanes) + pair * (2 * kPairTile));
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
