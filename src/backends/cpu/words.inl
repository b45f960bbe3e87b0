// SPDX-License-Identifier: Apache-2.0
// int8 K and V by products of 16-bit integers: making words of bytes is one instruction where bf16
// takes five. Queries and weights become words too, each row with a power of two of its own; a
// weight loses less than in bf16, and queries whose numbers lie too far apart are left to bf16
// (int8_items.inl). Included after f32_ops.inl.

struct WordDot : F32 {
  // A row of Q or of weights: words from its first float on, their exponent in its last.
  using Pair = __m512i;
  using Operand = __m512i;
  using Sum = __m512i;
  static constexpr bool kOnlyTiles = true;
  static constexpr bool kRoundsRows = true;
  static constexpr std::int64_t kMaxRows = 16;
  // As many bytes as kChunk keys of bf16 have.
  static constexpr std::int64_t kWideChunk = 2 * kChunk;
  template <class T>
  static constexpr std::int64_t few_rows_chunk() noexcept {
    return kWideChunk;
  }
  // Sums of products of 15 and 7 bits fit 31.
  static constexpr std::int64_t kMaxDims = 512;
  // What is rounded to 15 bits of the largest of a row may be this much smaller on average.
  static constexpr float kMaxSpread = 32.0F;

  QUIRE_INLINE static Vec power_of_two(Vec x) noexcept { return exp2<3>(x); }
  template <class T>
  static constexpr std::int64_t in_place_rows() noexcept {
    return kMaxRows;
  }
  static constexpr std::int64_t kPlainRows = 0;
  template <class T>
  static constexpr std::int64_t plain_value_rows() noexcept {
    return 0;
  }

  // May a row of Q be rounded to words? Not if it holds what is not finite.
  template <class T>
  static bool fits(const T* q, std::int64_t dims) noexcept {
    Vec sum = zero();
    Vec top = zero();
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const Vec x = abs(load_part(q + d, dims - d));
      sum = add(sum, x);
      top = max_of(x, top);
    }
    const float total = reduce_add(sum);
    return reduce_max(top) * static_cast<float>(dims) <= kMaxSpread * total &&
           total <= std::numeric_limits<float>::max();
  }

  template <class T>
  QUIRE_INLINE static void load_query(const T* q, std::int64_t dims, std::int64_t stride,
                                      float* out) noexcept {
    Vec top = zero();
    for (std::int64_t d = 0; d < stride; d += kLanes) {
      const Vec x = d < dims ? load_part(q + d, dims - d) : zero();
      store(out + d, x);
      top = max_of(abs(x), top);
    }
    round_row(out, stride, stride, reduce_max(top));
  }

  // `count` floats of a row become words in their place. `max` is the largest magnitude, finite.
  static void round_row(float* row, std::int64_t stride, std::int64_t count, float max) noexcept {
    const int biased = __builtin_bit_cast(std::int32_t, max) >> 23;
    const auto exponent = static_cast<float>(biased - 127 - 14);
    const Vec up = set1(-exponent);
    auto* words = reinterpret_cast<std::int16_t*>(row);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const __m512i x = _mm512_cvtps_epi32(_mm512_scalef_ps(load(row + i), up));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i), _mm512_cvtsepi32_epi16(x));
    }
    row[stride - 1] = exponent;
  }

  // Where a row of weights has something that is not finite; else the row becomes words.
  static bool round_weights(float* row, std::int64_t stride, std::int64_t count) noexcept {
    Vec top = zero();
    Vec differences = zero();  // NaN if one is not finite
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Vec x = load(row + i);
      top = max_of(abs(x), top);
      differences = add(differences, sub(x, x));
    }
    if (any_nan(differences)) [[unlikely]]
      return false;
    round_row(row, stride, count, reduce_max(top));
    return true;
  }

  // How multiply_streamed multiplies and what it reads.
  QUIRE_INLINE static Sum no_sum() noexcept { return _mm512_setzero_si512(); }
  QUIRE_INLINE static Sum add_products(Sum sum, Pair x, Operand factor) noexcept {
    return dot_words(sum, x, factor);
  }
  template <int kSteps>
  QUIRE_INLINE static Vec total(const Sum (&sum)[kSteps], const float* row,
                                std::int64_t stride) noexcept {
    Sum all = _mm512_add_epi32(sum[0], sum[1]);
    if constexpr (kSteps == 4) all = _mm512_add_epi32(all, _mm512_add_epi32(sum[2], sum[3]));
    return _mm512_scalef_ps(_mm512_cvtepi32_ps(all), set1(row[stride - 1]));
  }
  QUIRE_INLINE static Operand step_of_row(const float* row, std::int64_t step) noexcept {
    int words;
    __builtin_memcpy(&words, row + step, sizeof(words));
    return _mm512_set1_epi32(words);
  }
  template <int kSteps>
  QUIRE_INLINE static void load_steps(const std::int8_t* tile, Pair (&x)[kSteps]) noexcept {
    QUIRE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const auto* bytes = reinterpret_cast<const __m256i*>(tile + i * 2 * kPairTile);
      x[i] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(bytes));
    }
  }

  template <class B>
  static void multiply(const float* a, bool /*low*/, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    multiply_streamed<WordDot>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero, ahead);
  }
};
