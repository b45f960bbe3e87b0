// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 by vdpbf16ps.
struct Bf16Dot : Bf16Base {
  using Pair = __m512i;
  using Operand = __m512i;
  static constexpr int kHalves = 1;
  static constexpr int kVectors = 4;
  static constexpr std::int64_t kKeyStep = kPairTile;
  static constexpr std::int64_t kRowBlock = 96;
  static constexpr std::int64_t kWideChunk = kChunk;
  static constexpr std::int64_t kDimStep = 2;
  // bf16 needs no conversion.
  template <class T>
  static constexpr std::int64_t in_place_rows() noexcept {
    return std::is_same_v<T, BFloat16> ? kRowTile : 12;
  }
  template <class T>
  static constexpr std::int64_t plain_value_rows() noexcept {
    return in_place_rows<T>();
  }
  template <class T>
  static bool reads_in_place(const T* const* /*units*/, std::int64_t /*num_rows*/) noexcept {
    return true;
  }
  static constexpr bool kPipelined = false;
  static constexpr bool kWeightsInPlace = false;
  static constexpr std::int64_t kUnfetchedChunks = 0;

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
  // 16 dims of two keys.
  QUIRE_INLINE static Pair load_tokens(const BFloat16* even, const BFloat16* odd) noexcept {
    const __m512i low =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
    const __m512i high =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  template <class T>
  QUIRE_INLINE static Pair load_tokens(const T* even, const T* odd) noexcept {
    const __m512 low = load_row(even);
    const __m512 high = load_row(odd);  // bf16 is the upper half of an f32
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(low), 16), 0xaaaaaaaaU,
                                 _mm512_castps_si512(high));
  }

  // C (+)= A B; with `low` also what lies kLowWeights after A.
  template <class B>
  static void multiply(const BFloat16* a, bool low, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    multiply_vectors<Bf16Dot>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero, ahead);
    if (!low) return;
    multiply_vectors<Bf16Dot>(a + kLowWeights, a_stride, rows, b, num_vectors, c, c_stride, false,
                              ahead);
  }
};
