// SPDX-License-Identifier: Apache-2.0
// Vectors of the level avx512 (F, BW, DQ, VL): 16 floats, and how every stored format becomes them.
// Included inside a target region, into the level's namespace.
//
// Every level provides these names; vec_test.cc holds them to the portable ones.

inline constexpr int kLanes = 16;
inline constexpr int kBlockVectors = 4;  // 6 rows of 4 accumulators, of 32 registers
using Vec = __m512;

QUIRE_INLINE Vec load(const float* p) noexcept {
  return _mm512_loadu_ps(p);
}
QUIRE_INLINE void store(float* p, Vec x) noexcept {
  _mm512_storeu_ps(p, x);
}
QUIRE_INLINE Vec set1(float x) noexcept {
  return _mm512_set1_ps(x);
}
QUIRE_INLINE Vec zero() noexcept {
  return _mm512_setzero_ps();
}
QUIRE_INLINE Vec add(Vec a, Vec b) noexcept {
  return _mm512_add_ps(a, b);
}
QUIRE_INLINE Vec sub(Vec a, Vec b) noexcept {
  return _mm512_sub_ps(a, b);
}
QUIRE_INLINE Vec mul(Vec a, Vec b) noexcept {
  return _mm512_mul_ps(a, b);
}
QUIRE_INLINE Vec div(Vec a, Vec b) noexcept {
  return _mm512_div_ps(a, b);
}
QUIRE_INLINE Vec abs(Vec a) noexcept {
  return _mm512_abs_ps(a);
}
QUIRE_INLINE Vec iota() noexcept {
  return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}
// a * b + c, rounded once.
QUIRE_INLINE Vec fma(Vec a, Vec b, Vec c) noexcept {
  return _mm512_fmadd_ps(a, b, c);
}
// a * b - c, rounded once on every level.
QUIRE_INLINE Vec exact_fms(Vec a, Vec b, Vec c) noexcept {
  return _mm512_fmsub_ps(a, b, c);
}
// The larger one; b where either is NaN.
QUIRE_INLINE Vec max_of(Vec a, Vec b) noexcept {
  return _mm512_max_ps(a, b);
}
QUIRE_INLINE float reduce_max(Vec a) noexcept {
  return _mm512_reduce_max_ps(a);
}
QUIRE_INLINE float reduce_add(Vec a) noexcept {
  return _mm512_reduce_add_ps(a);
}
QUIRE_INLINE bool any_greater(Vec a, Vec b) noexcept {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
QUIRE_INLINE bool any_nan(Vec a) noexcept {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}
// a < b ? x : y, lane by lane; y where either is NaN.
QUIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) noexcept {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// a == 0 ? 0 : b.
QUIRE_INLINE Vec zero_where_zero(Vec a, Vec b) noexcept {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ), b);
}
// Lanes [begin, end) of x, others of y. Any begin and end.
QUIRE_INLINE Vec keep_lanes(Vec x, std::int64_t begin, std::int64_t end, Vec y) noexcept {
  const auto below = [](std::int64_t n) -> std::uint32_t {
    return n <= 0 ? 0U : n >= 16 ? 0xffffU : (1U << n) - 1U;
  };
  return _mm512_mask_blend_ps(static_cast<__mmask16>(below(end) & ~below(begin)), y, x);
}

// 2^x: 0 for -inf and below f32, NaN for NaN. A polynomial of the fraction, the integer part in the
// exponent.
template <int kDegree>
QUIRE_INLINE Vec exp2(Vec x) noexcept {
  const Vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec p = set1(Exp2<kDegree>::kCoefficients[0]);
  QUIRE_UNROLL
  for (int i = 1; i <= kDegree; ++i) p = fma(p, r, set1(Exp2<kDegree>::kCoefficients[i]));
  return _mm512_scalef_ps(p, x);
}

// kLanes consecutive elements as floats.
QUIRE_INLINE Vec load_row(const float* p) noexcept {
  return _mm512_loadu_ps(p);
}
QUIRE_INLINE Vec load_row(const BFloat16* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
QUIRE_INLINE Vec load_row(const Float16* p) noexcept {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QUIRE_INLINE Vec load_row(const std::int8_t* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}
// 16 e4m3 codes, each in the high byte of a word. Shifted into an f16 the exponent is 8 too small,
// subnormals included; the conversion is exact, and so is the product with 2^8. Only NaN needs a
// look.
QUIRE_INLINE Vec from_e4m3_high(__m256i x) noexcept {
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7f00));
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f00));
  __m256i half = _mm256_srli_epi16(magnitude, 1);
  half = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00));
  half = _mm256_ternarylogic_epi32(half, x, _mm256_set1_epi16(static_cast<short>(0x8000)), 0xf8);
  return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0F));
}
QUIRE_INLINE Vec load_row(const Float8E4M3* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return from_e4m3_high(_mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8));
}
QUIRE_INLINE Vec load_row(const Float8E5M2* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8));
}

// kLanes floats as consecutive elements, rounded to nearest even.
QUIRE_INLINE void store_row(float* p, Vec x) noexcept {
  _mm512_storeu_ps(p, x);
}
QUIRE_INLINE void store_row(BFloat16* p, Vec x) noexcept {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i all = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
}
QUIRE_INLINE void store_row(Float16* p, Vec x) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Elements 2i and 2i + 1 of 2 * kLanes consecutive ones in lanes i of even and odd.
struct Pair {
  Vec even;
  Vec odd;
};
QUIRE_INLINE Pair load_pair(const float* p) noexcept {
  const Vec low = _mm512_loadu_ps(p);
  const Vec high = _mm512_loadu_ps(p + 16);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}
QUIRE_INLINE Pair load_pair(const BFloat16* p) noexcept {
  const __m512i x = _mm512_loadu_si512(p);
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
      _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
QUIRE_INLINE Pair load_pair(const Float16* p) noexcept {
  const __m512i x = _mm512_loadu_si512(p);
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)),
          _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)))};
}
QUIRE_INLINE Pair load_pair(const std::int8_t* p) noexcept {
  const __m512i x = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24)),
          _mm512_cvtepi32_ps(_mm512_srai_epi32(x, 8))};
}
QUIRE_INLINE Pair load_pair(const Float8E4M3* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {from_e4m3_high(_mm256_slli_epi16(x, 8)), from_e4m3_high(x)};
}
QUIRE_INLINE Pair load_pair(const Float8E5M2* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_set1_epi16(static_cast<short>(0xff00));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(x, 8)), _mm512_cvtph_ps(_mm256_and_si256(x, high))};
}

// rows[i] lane j becomes rows[j] lane i.
QUIRE_INLINE void transpose(Vec (&rows)[kLanes]) noexcept {
  __m512i t[16];
  __m512i u[16];
  QUIRE_UNROLL
  for (int i = 0; i < 16; i += 2) {
    const __m512i a = _mm512_castps_si512(rows[i]);
    const __m512i b = _mm512_castps_si512(rows[i + 1]);
    t[i] = _mm512_unpacklo_epi32(a, b);
    t[i + 1] = _mm512_unpackhi_epi32(a, b);
  }
  QUIRE_UNROLL
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // u[4g + c] holds column c of every 128-bit lane, rows 4g .. 4g + 3.
  QUIRE_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(u[c], u[c + 4], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(u[c], u[c + 4], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0xdd);
    rows[c] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0x88));
    rows[c + 4] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0x88));
    rows[c + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0xdd));
    rows[c + 12] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

// The sums of 128-bit lanes 0 + 1 and 2 + 3 of a, then those of b.
QUIRE_INLINE Vec add_across(Vec a, Vec b) noexcept {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Lane 4 l + c of the result is the sum over 128-bit lane l of x[c].
QUIRE_INLINE Vec add_in_lanes(const Vec* x) noexcept {
  const __m512d low =
      _mm512_castps_pd(add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1])));
  const __m512d high =
      _mm512_castps_pd(add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3])));
  return add(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
             _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
}
QUIRE_INLINE Vec add_across_four(const Vec (&fours)[4]) noexcept {
  return add_across(add_across(fours[0], fours[1]), add_across(fours[2], fours[3]));
}

// Lane i of the result is the sum of the lanes of x[i].
QUIRE_INLINE Vec add_lanes(const Vec (&x)[kLanes]) noexcept {
  Vec fours[4];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) fours[i] = add_in_lanes(x + 4 * i);
  return add_across_four(fours);
}
