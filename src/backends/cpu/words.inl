// SPDX-License-Identifier: Apache-2.0
// int8 K and V without making bf16 of them, which takes five instructions for 32 numbers. K by
// products of 16-bit integers: a row of Q becomes words with a power of two of its own, which holds
// most queries of bf16 exactly; those that it does not are left to bf16 (int8_items.inl). V by
// products of bytes: a weight takes three digits of 8 bits, all that f32 has of the largest of its
// row, because a few large ones must not cost the many small ones their digits; two where none of
// a chunk is large beside the others. Included after f32_ops.inl.

// Weights of a chunk as digits.
struct Digits {
  // A row: the first digits of all weights, then the second, then the third; its last float is the
  // exponent of the third ones, and the one before that, of the first row alone, how many digits
  // the rows that go together have at most.
  using A = float;
  using Pair = __m512i;
  using Sum = __m512i;
  static constexpr std::int64_t kMaxKeys = 2 * kChunk;
  static constexpr std::int64_t kPart = kMaxKeys / static_cast<std::int64_t>(sizeof(float));
  static constexpr int kPairsOfStep = 2;  // four keys
  static constexpr bool kFetchesWhileSoftening = false;
  static constexpr int kVectors = kMaxKeys / kLanes;

  // With two digits a weight is wrong by half a unit at most, of which the largest has 2^15 or
  // more: all of a row by this share of their sum, if that is at least kSpread times the largest.
  // The contract allows 1e-4 for everything.
  static constexpr float kSpread = 32.0F;
  static_assert(kMaxKeys * 0.5F / (32768.0F * kSpread) < 0.7e-4F);

  // The bits of the largest of `count` weights; above those of infinity if one has a sign.
  QUIRE_INLINE static std::uint32_t largest(const float* row, std::int64_t count) noexcept {
    __m512i top = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < count; i += kLanes) {
      top = _mm512_max_epu32(top, _mm512_castps_si512(load(row + i)));
    }
    return _mm512_reduce_max_epu32(top);
  }
  static constexpr std::uint32_t kInfinity = 0x7f800000;
  static constexpr std::uint32_t kLeastNormal = 0x00800000;

  // How many digits the weights of a row need: of each row apart, since one must not feel what only
  // others see.
  static int needed(const float* row, std::int64_t count) noexcept {
    const std::uint32_t bits = largest(row, count);
    if (bits >= kInfinity || bits == 0) return 2;  // round_row refuses it, or nothing is lost
    Vec sum = zero();
    for (std::int64_t i = 0; i < count; i += kLanes) sum = add(sum, load(row + i));
    const float total = reduce_add(sum);
    const bool spread = total * (1.0F / kSpread) >= __builtin_bit_cast(float, bits);
    return spread && bits >= kLeastNormal && total < std::numeric_limits<float>::max() ? 2 : 3;
  }

  // `count` weights of a row become digits in their place, unless one is negative or not finite.
  static bool round_row(float* row, std::int64_t stride, std::int64_t count, int digits) noexcept {
    const std::uint32_t bits = largest(row, count);
    if (bits >= kInfinity) [[unlikely]]
      return false;
    const int third = static_cast<int>(bits >> 23) - 127 - 8 * 3 + 1;
    const auto exponent = static_cast<float>(third + 8 * (3 - digits));
    // The largest must not be rounded to one digit more: it has 2^16 units then, of which one
    // counts as half of one of 2^15.
    const __m512i limit = _mm512_set1_epi32(digits == 2 ? 0xffff : 0xffffff);
    const auto unused = static_cast<unsigned>(24 - 8 * digits);
    Vec x[kVectors];
    QUIRE_UNROLL
    for (int i = 0; i < kVectors; ++i) x[i] = i * kLanes < count ? load(row + i * kLanes) : zero();
    QUIRE_UNROLL
    for (int i = 0; i < kVectors; i += 4) {
      __m512i fours[4];
      QUIRE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const __m512i units = _mm512_cvtps_epi32(_mm512_scalef_ps(x[i + k], set1(-exponent)));
        fours[k] = sort_digits(_mm512_slli_epi32(_mm512_min_epi32(units, limit), unused));
      }
      store_digits(fours, row + i * kLanes / static_cast<int>(sizeof(float)));
    }
    row[stride - 1] = static_cast<float>(third);
    return true;
  }
  // What rows that are multiplied together have: those of two have a third that is 0.
  static void set_digits_of_all(float* first_row, std::int64_t stride, int digits) noexcept {
    first_row[stride - 2] = static_cast<float>(digits);
  }
  static bool all_have_two(const float* first_row, std::int64_t stride) noexcept {
    return first_row[stride - 2] == 2.0F;
  }

  // Of four numbers in each lane of 128 bits: all third digits, all second, all first.
  QUIRE_INLINE static __m512i sort_digits(__m512i x) noexcept {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm512_shuffle_epi8(x, order);
  }
  // Those of 64 numbers, to their places from `row` on.
  QUIRE_INLINE static void store_digits(const __m512i (&x)[4], float* row) noexcept {
    const __m512i low[2] = {_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3])};
    const __m512i high[2] = {_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3])};
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const auto put = [&](int digit, __m512i fours) QUIRE_INLINE_LAMBDA {
      _mm512_storeu_si512(row + digit * kPart, _mm512_permutexvar_epi32(order, fours));
    };
    put(0, _mm512_unpacklo_epi64(high[0], high[1]));
    put(1, _mm512_unpackhi_epi64(low[0], low[1]));
    put(2, _mm512_unpacklo_epi64(low[0], low[1]));
  }

  QUIRE_INLINE static Sum no_sum() noexcept { return _mm512_setzero_si512(); }
  QUIRE_INLINE static Sum add_sums(Sum x, Sum y) noexcept { return _mm512_add_epi32(x, y); }
  QUIRE_INLINE static Sum add_products(Sum sum, Pair x, __m512i digits) noexcept {
    return dot_bytes(sum, digits, x);
  }
  QUIRE_INLINE static __m512i step_of_row(const float* row, std::int64_t step) noexcept {
    int digits;
    __builtin_memcpy(&digits, row + step, sizeof(digits));
    return _mm512_set1_epi32(digits);
  }
  // Two pairs of keys lie one behind the other: four keys of a dim come together.
  template <int kSteps>
  QUIRE_INLINE static void load_steps(const std::int8_t* tile, Pair (&x)[kSteps]) noexcept {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    QUIRE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      x[i] = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(tile + i * 4 * kPairTile));
    }
  }
};

// Weights of so many digits, and V.
template <int kDigits>
struct DigitDot : Digits {
  template <int kSteps>
  QUIRE_INLINE static Vec total(const Sum (&sum)[kDigits][kSteps], const float* row,
                                std::int64_t stride) noexcept {
    Vec all = zero();
    QUIRE_UNROLL
    for (int digit = 0; digit < kDigits; ++digit) {
      all = fma(all, set1(256.0F), _mm512_cvtepi32_ps(add_up<DigitDot>(sum[digit])));
    }
    return _mm512_scalef_ps(all, set1(row[stride - 1] + 8.0F * (3 - kDigits)));
  }
};

// Q and K.
struct WordDot : F32 {
  // A row of Q: words from its first float on, their exponent in its last.
  using Pair = __m512i;
  using Operand = __m512i;
  using Sum = __m512i;
  static constexpr bool kOnlyTiles = true;
  static constexpr bool kRoundsRows = true;
  static constexpr std::int64_t kMaxRows = 16;
  // As many bytes as kChunk keys of bf16 have.
  static constexpr std::int64_t kWideChunk = Digits::kMaxKeys;
  template <class T>
  static std::int64_t few_rows_chunk(const AttendCall& /*call*/) noexcept {
    return kWideChunk;
  }
  static constexpr std::int64_t kPart = 0;  // each number is one word
  static constexpr int kPairsOfStep = 1;
  // Sums fit 31 bits: the largest word of a bf16 query is 32640, of a byte 128.
  static constexpr std::int64_t kMaxDims = 512;
  static_assert(kMaxDims * 32640 * 128 < std::int64_t{1} << 31);
  // What the words of a row of Q may lose, as a share of the numbers that may lose something.
  static constexpr float kMaxLoss = 0x1p-11F;

  QUIRE_INLINE static Vec power_of_two(Vec x) noexcept { return exp2<3>(x); }
  // Of a vector of numbers.
  QUIRE_INLINE static bool any_equal(const float* numbers, float x) noexcept {
    return _mm512_cmp_ps_mask(load(numbers), set1(x), _CMP_EQ_OQ) != 0;
  }
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

  // The weights of some rows become digits, each row as many as it needs: a row that `add` is
  // called for cannot have any, and is 0 then.
  template <class Add>
  static void round_rows(float* rows, std::int64_t stride, std::int64_t num_rows,
                         std::int64_t count, Add&& add) noexcept {
    int most = 2;
    for (std::int64_t r = 0; r < num_rows; ++r) {
      float* row = rows + r * stride;
      const int digits = Digits::needed(row, count);
      most = std::max(most, digits);
      if (Digits::round_row(row, stride, count, digits)) continue;
      add(r);
      fill_zero(row, count);
      Digits::round_row(row, stride, count, digits);
    }
    Digits::set_digits_of_all(rows, stride, most);
  }

  // How multiply_streamed multiplies and what it reads.
  QUIRE_INLINE static Sum no_sum() noexcept { return _mm512_setzero_si512(); }
  QUIRE_INLINE static Sum add_products(Sum sum, Pair x, Operand factor) noexcept {
    return dot_words(sum, x, factor);
  }
  template <int kSteps>
  QUIRE_INLINE static Vec total(const Sum (&sum)[1][kSteps], const float* row,
                                std::int64_t stride) noexcept {
    return _mm512_scalef_ps(_mm512_cvtepi32_ps(add_up<WordDot>(sum[0])), set1(row[stride - 1]));
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
    if constexpr (std::is_same_v<B, TiledValues<WordDot, std::int8_t>>) {
      if (Digits::all_have_two(a, a_stride)) {
        multiply_streamed<DigitDot<2>, 2>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero,
                                          ahead);
      } else {
        multiply_streamed<DigitDot<3>, 3>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero,
                                          ahead);
      }
    } else {
      multiply_streamed<WordDot, 1>(a, a_stride, rows, b, num_vectors, c, c_stride, from_zero,
                                    ahead);
    }
  }
};
