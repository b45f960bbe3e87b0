// SPDX-License-Identifier: Apache-2.0
// int8 K and V by products of 16-bit integers: making words of bytes is one instruction where bf16
// takes five. A row of Q becomes words with a power of two of its own, which holds most queries of
// bf16 exactly; those that it does not are left to bf16 (int8_items.inl). Weights take two words
// each: a few large ones must not cost the many small ones their digits. Included after
// f32_ops.inl.

struct WordDot : F32 {
  // A row of Q or of weights: words from its first float on, their exponent in its last. The lower
  // words of weights begin kLowPart floats further on, 15 powers of two below.
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
  static constexpr std::int64_t kLowPart = kWideChunk / 2;
  // Sums fit 31 bits: the largest word of a bf16 query is 32640, of a byte 128.
  static constexpr std::int64_t kMaxDims = 512;
  static_assert(kMaxDims * 32640 * 128 < std::int64_t{1} << 31);
  // What the words of a row of Q may lose, as a share of the numbers that may lose something.
  static constexpr float kMaxLoss = 0x1p-11F;

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

  // In words a number is x * 2^-exponent, rounded: the largest of them has 15 bits.
  static float exponent_of(float max) noexcept {
    const int biased = __builtin_bit_cast(std::int32_t, max) >> 23;
    return static_cast<float>(biased - 127 - 14);
  }

  // May a row of Q be rounded to words? bf16 has eight digits: what is not smaller than the largest
  // by seven powers of two is exact. Not if it holds what is not finite.
  template <class T>
  static bool fits(const T* q, std::int64_t dims) noexcept {
    Vec top = zero();
    Vec differences = zero();  // NaN if one is not finite
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const Vec x = load_part(q + d, dims - d);
      top = max_of(abs(x), top);
      differences = add(differences, sub(x, x));
    }
    if (any_nan(differences)) return false;
    const Vec up = set1(-exponent_of(reduce_max(top)));
    Vec lost = zero();
    Vec small = zero();
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const Vec x = abs(_mm512_scalef_ps(load_part(q + d, dims - d), up));
      lost = add(lost, abs(sub(x, round_to_integer(x))));
      small = add(small, _mm512_min_ps(x, set1(0x1p7F)));
    }
    return reduce_add(lost) <= kMaxLoss * reduce_add(small);
  }
  QUIRE_INLINE static Vec round_to_integer(Vec x) noexcept {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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
    const float exponent = exponent_of(reduce_max(top));
    for (std::int64_t d = 0; d < stride; d += kLanes) {  // in their place: behind what is read
      store_words(out, d, round_to_integer(_mm512_scalef_ps(load(out + d), set1(-exponent))));
    }
    out[stride - 1] = exponent;
  }
  // Words i .. i + 15 of those that begin at `row`, saturated.
  QUIRE_INLINE static void store_words(float* row, std::int64_t i, Vec integers) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<std::int16_t*>(row) + i),
                        _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(integers)));
  }

  // `count` weights of a row become words in their place, unless one is not finite.
  static bool round_row(float* row, std::int64_t stride, std::int64_t count) noexcept {
    Vec top = zero();
    Vec differences = zero();
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Vec x = load(row + i);
      top = max_of(abs(x), top);
      differences = add(differences, sub(x, x));
    }
    if (any_nan(differences)) [[unlikely]]
      return false;
    const float exponent = exponent_of(reduce_max(top));
    alignas(64) float low[kLowPart];  // whose place holds weights that are still to be read
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Vec x = _mm512_scalef_ps(load(row + i), set1(-exponent));
      const Vec high = _mm512_min_ps(round_to_integer(x), set1(32767.0F));
      store_words(row, i, high);
      store_words(low, i, mul(sub(x, high), set1(0x1p15F)));
    }
    std::copy_n(low, count / 2, row + kLowPart);
    row[stride - 1] = exponent;
    return true;
  }

  // How multiply_streamed multiplies and what it reads.
  QUIRE_INLINE static Sum no_sum() noexcept { return _mm512_setzero_si512(); }
  QUIRE_INLINE static Sum add_products(Sum sum, Pair x, Operand factor) noexcept {
    return dot_words(sum, x, factor);
  }
  template <int kParts, int kSteps>
  QUIRE_INLINE static Vec total(const Sum (&sum)[kParts][kSteps], const float* row,
                                std::int64_t stride) noexcept {
    const Vec exponent = set1(row[stride - 1]);
    const Vec high = _mm512_scalef_ps(_mm512_cvtepi32_ps(add_up<WordDot>(sum[0])), exponent);
    if constexpr (kParts == 1) return high;
    const Vec low = _mm512_cvtepi32_ps(add_up<WordDot>(sum[kParts - 1]));
    return add(high, _mm512_scalef_ps(low, sub(exponent, set1(15.0F))));
  }
  QUIRE_INLINE static Sum add_sums(Sum x, Sum y) noexcept { return _mm512_add_epi32(x, y); }
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
    constexpr int kParts = std::is_same_v<B, TiledValues<WordDot, std::int8_t>> ? 2 : 1;
    multiply_streamed<WordDot, kParts>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero,
                                       ahead);
  }
};
