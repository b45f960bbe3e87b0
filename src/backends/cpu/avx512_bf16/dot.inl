// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 by vdpbf16ps.
struct Bf16Dot : Bf16Base {
  using Pair = __m512i;
  using Operand = __m512i;
  static constexpr int kHalves = 1;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kKeyStep = kPairTile;
  static constexpr std::int64_t kRowBlock = 48;
  // More keys than 64: sums of O are loaded and stored less often, 82 to 87 % of the peak at hd128.
  static constexpr std::int64_t kWideChunk = kMaxChunk;
  // Chunks of as many bytes where keys are small: what each of them costs apart from its products
  // is spent half as often. Twice as many where they are fetched by heads.
  static constexpr bool kLongChunks = true;
  template <class T>
  static std::int64_t few_rows_chunk(const AttendCall& call) noexcept {
    constexpr std::int64_t kSmall = 256;
    const std::int64_t bytes = (call.spec.head_dim + call.spec.value_dim) * std::int64_t{sizeof(T)};
    return sizeof(T) == 1 || bytes <= kSmall || call.fetches_by_heads() ? 2 * kChunk : kChunk;
  }
  static constexpr std::int64_t kDimStep = 2;
  // bf16 needs no conversion.
  template <class T>
  static constexpr std::int64_t in_place_rows() noexcept {
    return std::is_same_v<T, BFloat16> ? kRowTile : 12;
  }
  // Plain rows of K and V as they lie; more rows have them packed once for all.
  static constexpr std::int64_t kPlainRows = 16;
  static constexpr std::int64_t kPlainDimStep = 32;
  template <class T>
  static constexpr std::int64_t plain_value_rows() noexcept {
    return kPlainRows;
  }
  template <class T>
  static bool reads_in_place(const T* const* /*units*/, std::int64_t /*num_rows*/) noexcept {
    return true;
  }
  static constexpr bool kPipelined = false;
  static constexpr bool kWeightsInPlace = false;
  static constexpr std::int64_t kUnfetchedChunks = 0;
  static constexpr bool kTouchesPieces = true;
  static constexpr bool kFetchesWhileSoftening = true;

  template <int kHalf>
  QUIRE_INLINE static Pair operand(Pair x) noexcept {
    return x;
  }
  template <int kHalf>
  QUIRE_INLINE static Operand broadcast(const BFloat16* a) noexcept {
    int pair;
    __builtin_memcpy(&pair, a, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  QUIRE_INLINE static Vec madd(Vec sum, Pair x, Operand factor) noexcept {
    return dot_pairs(sum, x, factor);
  }
  QUIRE_INLINE static Pair load_panel(const BFloat16* panel, std::int64_t stride, std::int64_t pair,
                                      std::int64_t column) noexcept {
    return _mm512_loadu_si512(panel + pair * 2 * stride + 2 * column);
  }
  template <class T>
  QUIRE_INLINE static Pair load_tile(const T* tile) noexcept {
    return load_bf16x32(tile);
  }

  // S = q.k along the dims of plain rows of K, all there: for up to four rows at once, so that keys
  // are read as seldom as registers allow. REQUIRES: as kPlainRows and kPlainDimStep say.
  template <class T>
  static void score_rows(const BFloat16* q, std::int64_t q_stride, std::int64_t num_rows,
                         const T* const* rows, std::int64_t width, std::int64_t dims, float* s,
                         std::int64_t s_stride, PrefetchWalk& ahead) noexcept {
    const auto passes = static_cast<int>(num_rows / 4 + num_rows % 4 / 2 + num_rows % 2);
    for (std::int64_t key = 0; key < width; key += kLanes) {
      std::int64_t r = 0;
      const auto score = [&]<int kRows>() {
        score_keys<kRows>(q + r * q_stride, q_stride, rows + key, dims, s + r * s_stride + key,
                          s_stride, passes, ahead);
      };
      for (; r + 4 <= num_rows; r += 4) score.template operator()<4>();
      if (r + 2 <= num_rows) score.template operator()<2>(), r += 2;
      if (r < num_rows) score.template operator()<1>();
    }
  }
  // Of 16 keys, kKeys at a time.
  template <int kRows, class T>
  static void score_keys(const BFloat16* q, std::int64_t q_stride, const T* const* keys,
                         std::int64_t dims, float* s, std::int64_t s_stride, int passes,
                         PrefetchWalk& ahead) noexcept {
    constexpr int kKeys = kRows == 4 ? 4 : 8;
    constexpr int kLines = kKeys * sizeof(T) / 2;  // that hold 32 dims of as many keys
    Vec fours[kRows][4];
    PrefetchWalk::Cursor fetch(ahead, passes);
    QUIRE_UNROLL
    for (int part = 0; part < kLanes / kKeys; ++part) {
      Vec sum[kRows][kKeys];
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        QUIRE_UNROLL
        for (int k = 0; k < kKeys; ++k) sum[r][k] = zero();
      }
      for (std::int64_t d = 0; d < dims; d += 32) {
        Pair factor[kRows];
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) factor[r] = load_bf16x32(q + r * q_stride + d);
        QUIRE_UNROLL
        for (int k = 0; k < kKeys; ++k) {
          const Pair x = load_bf16x32(keys[part * kKeys + k] + d);
          QUIRE_UNROLL
          for (int r = 0; r < kRows; ++r) sum[r][k] = dot_pairs(sum[r][k], x, factor[r]);
          if (k % (kKeys / kLines) == 0 && fetch.turn()) fetch.template step<1>();
        }
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        QUIRE_UNROLL
        for (int i = 0; i < kKeys / 4; ++i) {
          fours[r][part * (kKeys / 4) + i] = add_in_lanes(sum[r] + 4 * i);
        }
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) store(s + r * s_stride, add_across_four(fours[r]));
  }

  // C (+)= A B of plain rows of V. Two rows are interleaved inside 128-bit lanes, 32 dims by 32,
  // and their sums put in order at the end. Of each row as many dims at once as there are registers
  // for: rows of one head may be powers of two apart, and share few sets of the first cache.
  template <class T>
  static void accumulate_rows(const BFloat16* a, std::int64_t a_stride, std::int64_t rows,
                              const PlainValues<Bf16Dot, T>& b, std::int64_t num_vectors, float* c,
                              std::int64_t c_stride, bool from_zero, int passes,
                              PrefetchWalk& ahead) noexcept {
    const std::int64_t dims = num_vectors * kLanes;
    for_row_blocks(rows, [&]<int kRows>(std::int64_t r) {
      const auto accumulate = [&]<int kParts>(std::int64_t dim) {
        accumulate_dims<kRows, kParts>(a + r * a_stride, a_stride, b, dim, c + r * c_stride + dim,
                                       c_stride, from_zero, passes, ahead);
      };
      constexpr int kParts = kRows == 8 ? 1 : kRows == 4 ? 2 : 4;
      std::int64_t dim = 0;
      for (; dim + 32 * kParts <= dims; dim += 32 * kParts) {
        accumulate.template operator()<kParts>(dim);
      }
      for (; dim < dims; dim += 32) accumulate.template operator()<1>(dim);
    });
  }
  QUIRE_INLINE static void put_in_order(Vec low, Vec high, __m512i order, bool from_zero,
                                        float* c) noexcept {
    const Vec total = _mm512_castpd_ps(
        _mm512_permutex2var_pd(_mm512_castps_pd(low), order, _mm512_castps_pd(high)));
    store(c, from_zero ? total : add(load(c), total));
  }
  // Of 32 kParts dims.
  template <int kRows, int kParts, class T>
  static void accumulate_dims(const BFloat16* a, std::int64_t a_stride,
                              const PlainValues<Bf16Dot, T>& b, std::int64_t dim, float* c,
                              std::int64_t c_stride, bool from_zero, int passes,
                              PrefetchWalk& ahead) noexcept {
    constexpr int kLines = kParts * sizeof(T);  // that hold the dims of two keys
    Vec sum[kRows][kParts][2];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int i = 0; i < kParts; ++i) sum[r][i][0] = sum[r][i][1] = zero();
    }
    PrefetchWalk::Cursor fetch(ahead, passes);
    for (std::int64_t pair = 0; pair < b.pairs; ++pair, a += 2) {
      Pair low[kParts];
      Pair high[kParts];
      QUIRE_UNROLL
      for (int i = 0; i < kParts; ++i) {
        const Pair even = load_bf16x32(b.rows[2 * pair] + dim + 32 * i);
        const Pair odd = load_bf16x32(b.rows[2 * pair + 1] + dim + 32 * i);
        low[i] = _mm512_unpacklo_epi16(even, odd);
        high[i] = _mm512_unpackhi_epi16(even, odd);
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Operand weights = broadcast<0>(a + r * a_stride);
        QUIRE_UNROLL
        for (int i = 0; i < kParts; ++i) {
          sum[r][i][0] = dot_pairs(sum[r][i][0], low[i], weights);
          sum[r][i][1] = dot_pairs(sum[r][i][1], high[i], weights);
        }
      }
      if (fetch.turn()) fetch.template step<kLines>();
    }
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i last = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r, c += c_stride) {
      QUIRE_UNROLL
      for (int i = 0; i < kParts; ++i) {
        put_in_order(sum[r][i][0], sum[r][i][1], first, from_zero, c + 32 * i);
        put_in_order(sum[r][i][0], sum[r][i][1], last, from_zero, c + 32 * i + kLanes);
      }
    }
  }

  // How multiply_streamed multiplies and what it reads.
  using Sum = Vec;
  static constexpr std::int64_t kStreamedRows = 16;
  template <class B>
  static constexpr bool is_tiled(const B*) noexcept {
    return false;
  }
  template <class T>
  static constexpr bool is_tiled(const TiledKeys<Bf16Dot, T>*) noexcept {
    return true;
  }
  template <class T>
  static constexpr bool is_tiled(const TiledValues<Bf16Dot, T>*) noexcept {
    return true;
  }
  template <class B>
  static constexpr bool is_plain(const B*) noexcept {
    return false;
  }
  template <class T>
  static constexpr bool is_plain(const PlainValues<Bf16Dot, T>*) noexcept {
    return true;
  }
  QUIRE_INLINE static Sum no_sum() noexcept { return zero(); }
  QUIRE_INLINE static Sum add_products(Sum sum, Pair x, Operand factor) noexcept {
    return dot_pairs(sum, x, factor);
  }
  static constexpr std::int64_t kPart = kLowWeights;
  static constexpr int kPairsOfStep = 1;
  template <int kParts, int kSteps>
  QUIRE_INLINE static Vec total(const Sum (&sum)[kParts][kSteps], const BFloat16* /*row*/,
                                std::int64_t /*stride*/) noexcept {
    if constexpr (kParts == 1) return add_up<Bf16Dot>(sum[0]);
    return add(add_up<Bf16Dot>(sum[0]), add_up<Bf16Dot>(sum[kParts - 1]));
  }
  QUIRE_INLINE static Sum add_sums(Sum x, Sum y) noexcept { return add(x, y); }
  QUIRE_INLINE static Operand step_of_row(const BFloat16* row, std::int64_t step) noexcept {
    return broadcast<0>(row + 2 * step);
  }
  // Steps that lie side by side.
  template <class T, int kSteps>
  QUIRE_INLINE static void load_steps(const T* tile, Pair (&x)[kSteps]) noexcept {
    if constexpr (std::is_same_v<T, Float8E4M3> && kSteps % 2 == 0) {
      QUIRE_UNROLL
      for (int i = 0; i < kSteps; i += 2) {
        const Bf16x64 both = load_bf16x64(tile + i * 2 * kPairTile);
        x[i] = both.low;
        x[i + 1] = both.high;
      }
    } else {
      QUIRE_UNROLL
      for (int i = 0; i < kSteps; ++i) x[i] = load_bf16x32(tile + i * 2 * kPairTile);
    }
  }

  // C (+)= A B; with `low` also what lies kLowWeights after A.
  template <class B>
  static void multiply(const BFloat16* a, bool low, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    if constexpr (is_tiled(static_cast<const B*>(nullptr))) {
      if (rows <= kStreamedRows) {
        low ? multiply_streamed<Bf16Dot, 2>(a, a_stride, rows, b, num_vectors, c, c_stride,
                                            from_zero, ahead)
            : multiply_streamed<Bf16Dot, 1>(a, a_stride, rows, b, num_vectors, c, c_stride,
                                            from_zero, ahead);
        return;
      }
    }
    const auto multiply_part = [&](const BFloat16* part, bool fresh) {
      if constexpr (is_plain(static_cast<const B*>(nullptr))) {
        accumulate_rows(part, a_stride, rows, b, num_vectors, c, c_stride, fresh,
                        num_row_blocks(rows) * (low ? 2 : 1), ahead);
      } else {
        multiply_vectors<Bf16Dot>(part, a_stride, rows, b, num_vectors, c, c_stride, fresh, ahead);
      }
    };
    multiply_part(a, from_zero);
    if (low) multiply_part(a + kLowWeights, false);
  }
};
