// SPDX-License-Identifier: Apache-2.0
// The way to multiply that every level has: f32 factors, a pair is two fused multiply-adds. Exact
// for every stored format.

// S = q.k along the dims of plain rows of K, four keys at a time; the lanes of sixteen keys are
// then added up together.
template <class T>
inline void score_along_dims(const float* q, std::int64_t q_stride, std::int64_t num_rows,
                             const T* const* rows, std::int64_t width, std::int64_t dims, float* s,
                             std::int64_t s_stride, PrefetchWalk& ahead) noexcept {
  constexpr int kKeys = 4;
  constexpr auto kFetchBytes = static_cast<int>(kKeys * kLanes * sizeof(T));  // as much as is read
  const auto block = [&]<int kRows>(std::int64_t r) {
    for (std::int64_t first = 0; first < width; first += kLanes) {
      Vec lanes[kRows][kLanes];
      for (std::int64_t j = 0; j < kLanes; j += kKeys) {
        Vec sum[kRows][kKeys];
        QUIRE_UNROLL
        for (int i = 0; i < kRows; ++i) {
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) sum[i][k] = zero();
        }
        const T* const* keys = rows + first + j;
        for (std::int64_t d = 0; d < dims; d += kLanes) {
          Vec x[kKeys];
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) x[k] = load_row(keys[k] + d);
          if constexpr (kFetchBytes >= 64) {
            ahead.steps<kFetchBytes / 64>();
          } else if (d / kLanes % (64 / kFetchBytes) == 0) {
            ahead.step();
          }
          QUIRE_UNROLL
          for (int i = 0; i < kRows; ++i) {
            const Vec factor = load(q + (r + i) * q_stride + d);
            QUIRE_UNROLL
            for (int k = 0; k < kKeys; ++k) sum[i][k] = fma(x[k], factor, sum[i][k]);
          }
        }
        QUIRE_UNROLL
        for (int i = 0; i < kRows; ++i) {
          QUIRE_UNROLL
          for (int k = 0; k < kKeys; ++k) lanes[i][j + k] = sum[i][k];
        }
      }
      QUIRE_UNROLL
      for (int i = 0; i < kRows; ++i) store(s + (r + i) * s_stride + first, add_lanes(lanes[i]));
    }
  };
  std::int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) block.template operator()<4>(r);
  for (; r + 2 <= num_rows; r += 2) block.template operator()<2>(r);
  for (; r < num_rows; ++r) block.template operator()<1>(r);
}

struct F32 {
  using A = float;      // of Q and of weights
  using Panel = float;  // [k][columns]
  using Pair = LevelPair;
  using Operand = Vec;
  static constexpr int kHalves = 2;
  static constexpr int kVectors = kBlockVectors;
  QUIRE_INLINE static Vec power_of_two(Vec x) noexcept { return exp2<5>(x); }
  static constexpr std::int64_t kKeyStep = kPairTile;  // scores are computed for multiples of it
  static constexpr std::int64_t kRowBlock = 96;
  static constexpr bool kLongChunks = false;          // of twice kChunk, beside kWideChunk
  static constexpr std::int64_t kWideChunk = kChunk;  // where one head has many rows
  template <class T>
  static std::int64_t few_rows_chunk(const AttendCall& /*call*/) noexcept {
    return kChunk;
  }
  // Rows that read tiles in place; more would convert them again and again, so panels are made.
  template <class T>
  static constexpr std::int64_t in_place_rows() noexcept {
    return 12;
  }
  template <class T>
  static bool reads_in_place(const T* const* /*units*/, std::int64_t /*num_rows*/) noexcept {
    return true;
  }
  static constexpr std::int64_t kDimStep = 2;  // of head_dim, for tiles in place
  // Rows that take products with plain rows of K as they lie; more transpose K first.
  static constexpr std::int64_t kPlainRows = 8;
  static constexpr std::int64_t kPlainDimStep = kLanes;
  // Rows that take plain rows of V as they lie.
  template <class T>
  static constexpr std::int64_t plain_value_rows() noexcept {
    return in_place_rows<T>();
  }
  static constexpr bool kOnlyTiles = false;       // it multiplies with nothing else
  static constexpr bool kRoundsRows = false;      // of weights, when all of a chunk are there
  static constexpr bool kPipelined = false;       // scores of a block while another is softened
  static constexpr bool kWeightsInPlace = false;  // of scores, two vectors of weights at once
  static constexpr std::int64_t kUnfetchedChunks = 0;  // of an item alone, not worth fetching ahead
  static constexpr bool kTouchesPieces = false;        // their first lines, before a chunk
  static constexpr bool kFetchesWhileSoftening = false;  // what comes next, between the rows
  using Weights = Vec;

  template <int kHalf>
  QUIRE_INLINE static Vec operand(const Pair& x) noexcept {
    return kHalf == 0 ? x.even : x.odd;
  }
  template <int kHalf>
  QUIRE_INLINE static Vec broadcast(const float* a) noexcept {
    return set1(a[kHalf]);
  }
  QUIRE_INLINE static Vec madd(Vec sum, Vec x, Vec factor) noexcept { return fma(x, factor, sum); }

  static constexpr std::int64_t panel_pairs(std::int64_t dims) noexcept { return (dims + 1) / 2; }

  // C (+)= A B. With `low` A is the sum of two, which f32 has no need of.
  template <class B>
  static void multiply(const float* a, bool /*low*/, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    multiply_vectors<F32>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero, ahead);
  }

  // S = q.k of plain rows of K, all there. REQUIRES: as kPlainRows and kPlainDimStep say.
  template <class T>
  static void score_rows(const float* q, std::int64_t q_stride, std::int64_t num_rows,
                         const T* const* rows, std::int64_t width, std::int64_t dims, float* s,
                         std::int64_t s_stride, PrefetchWalk& ahead) noexcept {
    score_along_dims(q, q_stride, num_rows, rows, width, dims, s, s_stride, ahead);
  }

  // Step `pair` of k: of a panel, of two rows of V, of a tile.
  QUIRE_INLINE static Pair load_panel(const float* panel, std::int64_t stride, std::int64_t pair,
                                      std::int64_t column) noexcept {
    const float* row = panel + 2 * pair * stride + column;
    return {load(row), load(row + stride)};
  }
  template <class T>
  QUIRE_INLINE static Pair load_tokens(const T* even, const T* odd) noexcept {
    return {load_row(even), load_row(odd)};
  }
  template <class T>
  QUIRE_INLINE static Pair load_tile(const T* tile) noexcept {
    return load_pair(tile);
  }

  template <class T>
  QUIRE_INLINE static void load_query(const T* q, std::int64_t dims, std::int64_t stride,
                                      float* out) noexcept {
    for (std::int64_t d = 0; d < stride; d += kLanes) {
      store(out + d, d < dims ? load_part(q + d, dims - d) : zero());
    }
  }

  QUIRE_INLINE static void store_weights(float* p, Vec x) noexcept { store(p, x); }
  QUIRE_INLINE static void store_scaled_weights(float* p, Vec x) noexcept { store(p, x); }
  // 0 for the keys of a V panel that no row may see.
  static void clear_absent(const Chunk& chunk, std::int64_t num_keys, std::int64_t dims,
                           float* panel, std::int64_t stride) noexcept {
    for (std::int64_t j = 0; j < num_keys; ++j) {
      if (chunk.v[j] == kAbsent) fill_zero(panel + j * stride, dims);
    }
  }
  static bool all_finite(const float* panel, std::int64_t stride, std::int64_t num_keys,
                         std::int64_t dims) noexcept {
    for (std::int64_t j = 0; j < num_keys; ++j) {
      for (std::int64_t d = 0; d < dims; d += kLanes) {
        const Vec x = load(panel + j * stride + d);
        if (any_nan(sub(x, x))) return false;
      }
    }
    return true;
  }
  static void clear_not_finite(float* panel, std::int64_t stride, std::int64_t num_keys,
                               std::int64_t dims) noexcept {
    for (std::int64_t j = 0; j < num_keys; ++j) {
      for (std::int64_t d = 0; d < dims; ++d) {
        float& x = panel[j * stride + d];
        x = x - x == 0.0F ? x : 0.0F;
      }
    }
  }
  static float weight(const float* p, bool /*low*/) noexcept { return *p; }
};
