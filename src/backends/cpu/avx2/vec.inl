// SPDX-License-Identifier: Apache-2.0
// Vectors of the level avx2 (AVX2, FMA, F16C): 8 floats, and how every stored format becomes them.
// Included inside a target region, into the level's namespace.

inline constexpr int kLanes = 8;
inline constexpr int kBlockVectors = 2;  // 6 rows of 2 accumulators, of 16 registers
using Vec = __m256;

QUIRE_INLINE Vec load(const float* p) noexcept {
  return _mm256_loadu_ps(p);
}
QUIRE_INLINE void store(float* p, Vec x) noexcept {
  _mm256_storeu_ps(p, x);
}
QUIRE_INLINE Vec set1(float x) noexcept {
  return _mm256_set1_ps(x);
}
QUIRE_INLINE Vec zero() noexcept {
  return _mm256_setzero_ps();
}
QUIRE_INLINE Vec add(Vec a, Vec b) noexcept {
  return _mm256_add_ps(a, b);
}
QUIRE_INLINE Vec sub(Vec a, Vec b) noexcept {
  return _mm256_sub_ps(a, b);
}
QUIRE_INLINE Vec mul(Vec a, Vec b) noexcept {
  return _mm256_mul_ps(a, b);
}
QUIRE_INLINE Vec div(Vec a, Vec b) noexcept {
  return _mm256_div_ps(a, b);
}
QUIRE_INLINE Vec abs(Vec a) noexcept {
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
QUIRE_INLINE Vec iota() noexcept {
  return _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0);
}
// a * b + c, rounded once.
QUIRE_INLINE Vec fma(Vec a, Vec b, Vec c) noexcept {
  return _mm256_fmadd_ps(a, b, c);
}
// a * b - c, rounded once on every level.
QUIRE_INLINE Vec exact_fms(Vec a, Vec b, Vec c) noexcept {
  return _mm256_fmsub_ps(a, b, c);
}
// The larger one; b where either is NaN.
QUIRE_INLINE Vec max_of(Vec a, Vec b) noexcept {
  return _mm256_max_ps(a, b);
}
QUIRE_INLINE float reduce_max(Vec a) noexcept {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
QUIRE_INLINE float reduce_add(Vec a) noexcept {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
QUIRE_INLINE bool any_greater(Vec a, Vec b) noexcept {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
QUIRE_INLINE bool any_nan(Vec a) noexcept {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
}
// a < b ? x : y, lane by lane; y where either is NaN.
QUIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) noexcept {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// a == 0 ? 0 : b.
QUIRE_INLINE Vec zero_where_zero(Vec a, Vec b) noexcept {
  return _mm256_and_ps(b, _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}
// Lanes [begin, end) of x, others of y. Any begin and end.
QUIRE_INLINE Vec keep_lanes(Vec x, std::int64_t begin, std::int64_t end, Vec y) noexcept {
  const Vec lane = iota();
  const auto from = static_cast<float>(begin < 0 ? 0 : begin > 8 ? 8 : begin);
  const auto to = static_cast<float>(end < 0 ? 0 : end > 8 ? 8 : end);
  const Vec inside = _mm256_and_ps(_mm256_cmp_ps(lane, set1(from), _CMP_GE_OQ),
                                   _mm256_cmp_ps(lane, set1(to), _CMP_LT_OQ));
  return _mm256_blendv_ps(y, x, inside);
}

// 2^x: 0 for -inf and below f32's normal numbers, NaN for NaN. A polynomial of the fraction, the
// integer part in the exponent. Above 127 it stays 2^127, so that sums show that x was too large.
template <int kDegree>
QUIRE_INLINE Vec exp2(Vec x) noexcept {
  const Vec smallest = set1(-126.0F);
  const Vec normal = _mm256_cmp_ps(x, smallest, _CMP_NLT_UQ);  // NaN too
  // x where it is NaN.
  const Vec clamped = _mm256_min_ps(set1(127.0F), _mm256_max_ps(smallest, x));
  const Vec whole = _mm256_floor_ps(clamped);
  const Vec r = sub(clamped, whole);
  Vec p = set1(Exp2<kDegree>::kCoefficients[0]);
  QUIRE_UNROLL
  for (int i = 1; i <= kDegree; ++i) p = fma(p, r, set1(Exp2<kDegree>::kCoefficients[i]));
  // Of a NaN the integer part is 0x80000000, which the shift loses.
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
  const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), exponent);
  return _mm256_and_ps(_mm256_castsi256_ps(bits), normal);
}

// kLanes consecutive elements as floats.
QUIRE_INLINE Vec load_row(const float* p) noexcept {
  return _mm256_loadu_ps(p);
}
QUIRE_INLINE Vec load_row(const BFloat16* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
QUIRE_INLINE Vec load_row(const Float16* p) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
QUIRE_INLINE Vec load_row(const std::int8_t* p) noexcept {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(p)));
}
// 8 e4m3 codes, each in the high byte of a word. Shifted into an f16 the exponent is 8 too small,
// subnormals included; the conversion is exact, and so is the product with 2^8. Only NaN needs a
// look.
QUIRE_INLINE Vec from_e4m3_high(__m128i x) noexcept {
  const __m128i magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7f00));
  const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
  const __m128i sign = _mm_and_si128(x, _mm_set1_epi16(static_cast<short>(0x8000)));
  const __m128i half = _mm_or_si128(_mm_srli_epi16(magnitude, 1), sign);
  const __m128i quiet = _mm_and_si128(nan, _mm_set1_epi16(0x7e00));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, quiet)), _mm256_set1_ps(256.0F));
}
QUIRE_INLINE Vec load_row(const Float8E4M3* p) noexcept {
  return from_e4m3_high(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadu_si64(p)), 8));
}
QUIRE_INLINE Vec load_row(const Float8E5M2* p) noexcept {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadu_si64(p)), 8));
}

// Elements 2i and 2i + 1 of 2 * kLanes consecutive ones in lanes i of even and odd.
struct Pair {
  Vec even;
  Vec odd;
};
QUIRE_INLINE Pair load_pair(const float* p) noexcept {
  const Vec a = _mm256_loadu_ps(p);
  const Vec b = _mm256_loadu_ps(p + 8);
  const Vec low = _mm256_permute2f128_ps(a, b, 0x20);
  const Vec high = _mm256_permute2f128_ps(a, b, 0x31);
  return {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)};
}
QUIRE_INLINE Pair load_pair(const BFloat16* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
      _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}
// The low halves of 8 words.
QUIRE_INLINE __m128i narrow(__m256i x) noexcept {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
QUIRE_INLINE Pair load_pair(const Float16* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_cvtph_ps(narrow(x)), _mm256_cvtph_ps(narrow(_mm256_srli_epi32(x, 16)))};
}
QUIRE_INLINE Pair load_pair(const std::int8_t* p) noexcept {
  const __m256i x = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 8))};
}
QUIRE_INLINE Pair load_pair(const Float8E4M3* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {from_e4m3_high(_mm_slli_epi16(x, 8)), from_e4m3_high(x)};
}
QUIRE_INLINE Pair load_pair(const Float8E5M2* p) noexcept {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_set1_epi16(static_cast<short>(0xff00));
  return {_mm256_cvtph_ps(_mm_slli_epi16(x, 8)), _mm256_cvtph_ps(_mm_and_si128(x, high))};
}

// kLanes floats as consecutive elements, rounded to nearest even.
QUIRE_INLINE void store_row(float* p, Vec x) noexcept {
  _mm256_storeu_ps(p, x);
}
QUIRE_INLINE void store_row(BFloat16* p, Vec x) noexcept {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i all = _mm256_blendv_epi8(rounded, quiet, nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(_mm256_srli_epi32(all, 16)));
}
QUIRE_INLINE void store_row(Float16* p, Vec x) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// rows[i] lane j becomes rows[j] lane i.
QUIRE_INLINE void transpose(Vec (&rows)[kLanes]) noexcept {
  Vec t[8];
  QUIRE_UNROLL
  for (int i = 0; i < 8; i += 4) {
    const Vec a = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const Vec b = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const Vec c = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const Vec d = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
}

// Lane i of the result is the sum of the lanes of x[i].
QUIRE_INLINE Vec add_lanes(const Vec (&x)[kLanes]) noexcept {
  const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const Vec high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}
