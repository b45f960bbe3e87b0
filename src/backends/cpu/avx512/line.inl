// SPDX-License-Identifier: Apache-2.0
// Lines of the level avx512: 64 bytes of stored elements in one register. Included inside the
// target region, into the level's namespace, after vec.inl.
//
// Rounding is named in the instructions or done on integers, so that stored bytes do not follow
// from the mode of the processor; only divisions do, as in quantize().

struct Line {
  __m512i bits;
};

QUIRE_INLINE void store_line(void* p, const Line& line) noexcept {
  _mm512_storeu_si512(p, line.bits);
}
// Past the caches. REQUIRES: p is a multiple of 64; end_stream() at the end.
QUIRE_INLINE void stream_line(void* p, const Line& line) noexcept {
  _mm512_stream_si512(static_cast<__m512i*>(p), line.bits);
}
// What was streamed comes before what this thread writes next.
QUIRE_INLINE void end_stream() noexcept {
  _mm_sfence();
}

// |x|, 0 where x is infinite or NaN.
QUIRE_INLINE Vec finite_magnitudes(Vec x) noexcept {
  const Vec magnitude = abs(x);
  const __mmask16 finite = _mm512_cmplt_epi32_mask(
      _mm512_castps_si512(magnitude), _mm512_set1_epi32(number_formats_internal::kInfinityBits));
  return _mm512_maskz_mov_ps(finite, magnitude);
}

QUIRE_INLINE Vec divide(Vec x, const Divisor& by) noexcept {
  return by.divides ? div(x, set1(by.factor)) : mul(x, set1(by.factor));
}

// A NaN becomes quiet, as by any operation on it.
QUIRE_INLINE __m512i quiet(Vec x) noexcept {
  const __m512i bits = _mm512_castps_si512(x);
  return _mm512_mask_or_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                              _mm512_set1_epi32(0x400000));
}
// The same of 16-bit formats, by their infinity and the upper bit of their mantissa.
QUIRE_INLINE __m512i quiet_words(__m512i x, short infinity, short quiet_bit) noexcept {
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
  const __mmask32 nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(infinity));
  return _mm512_or_si512(x, _mm512_maskz_mov_epi16(nan, _mm512_set1_epi16(quiet_bit)));
}

// f32 with the bf16 that it rounds to in the upper half.
QUIRE_INLINE __m512i round_to_bf16(Vec x) noexcept {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                              _mm512_set1_epi32(0x400000));
}

// The codes of an 8-bit float, one in 32 bits. Below the smallest normal number the spacing of
// codes is constant: a sum with the number of that spacing rounds to it.
template <class Float8>
QUIRE_INLINE __m512i float8_codes(Vec x) noexcept {
  using Format = NumberFormat<Float8>;
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr int kRebias = (127 - Format::kExponentBias) << 23;
  constexpr int kSmallestNormal = kRebias + (1 << 23);
  constexpr int kSpacing = (127 + 1 - Format::kExponentBias - Format::kMantissaBits + 23) << 23;
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i odd =
      _mm512_and_si512(_mm512_srli_epi32(magnitude, kDropped), _mm512_set1_epi32(1));
  const __m512i half = _mm512_set1_epi32((1 << (kDropped - 1)) - 1 - kRebias);
  const __m512i normal =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, half), odd), kDropped);
  const __m512i sum = _mm512_castps_si512(_mm512_add_round_ps(
      _mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(_mm512_set1_epi32(kSpacing)),
      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(kSmallestNormal));
  __m512i code = _mm512_mask_sub_epi32(normal, small, sum, _mm512_set1_epi32(kSpacing));
  code = _mm512_min_epi32(code, _mm512_set1_epi32(Format::kOverflowCode));
  code = _mm512_ternarylogic_epi32(code, _mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80),
                                   0xf8);  // code | (sign & 0x80)
  return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7f));
}

// Integers in 32 bits, at most 127; those below -128 are for the packing to saturate.
QUIRE_INLINE __m512i int8_codes(Vec x) noexcept {
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_cvt_roundps_epi32(_mm512_maskz_min_ps(number, x, set1(127.0F)),
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Packing works in 128-bit lanes: 4-byte groups 4 l + v come from lane l of vector v.
QUIRE_INLINE Line in_order(__m512i packed) noexcept {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  return {_mm512_permutexvar_epi32(order, packed)};
}

// 64 / sizeof(T) elements from `row` as they are stored. Only 8-bit formats divide.
template <class T, class S>
QUIRE_INLINE Line encode(const S* row, const Divisor& by) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    return {quiet(load_row(row))};
  } else if constexpr (std::is_same_v<T, S>) {
    constexpr bool kBf16 = std::is_same_v<T, BFloat16>;
    return {quiet_words(_mm512_loadu_si512(row), kBf16 ? 0x7f80 : 0x7c00, kBf16 ? 0x40 : 0x200)};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return {_mm512_permutex2var_epi16(round_to_bf16(load_row(row)), odd,
                                      round_to_bf16(load_row(row + 16)))};
  } else if constexpr (std::is_same_v<T, Float16>) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(load_row(row), kNearest)),
                               _mm512_cvtps_ph(load_row(row + 16), kNearest), 1)};
  } else {
    Vec x[4];
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = divide(load_row(row + 16 * i), by);
    if constexpr (std::is_same_v<T, std::int8_t>) {
      return in_order(_mm512_packs_epi16(_mm512_packs_epi32(int8_codes(x[0]), int8_codes(x[1])),
                                         _mm512_packs_epi32(int8_codes(x[2]), int8_codes(x[3]))));
    } else {
      return in_order(
          _mm512_packus_epi16(_mm512_packus_epi32(float8_codes<T>(x[0]), float8_codes<T>(x[1])),
                              _mm512_packus_epi32(float8_codes<T>(x[2]), float8_codes<T>(x[3]))));
    }
  }
}

// lines[t] holds a line of dims of token t; becomes [dim / 2][t][dim % 2].
template <class T>
QUIRE_INLINE void pair_dims(Line (&lines)[16]) noexcept {
  Vec rows[16];
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_castsi512_ps(lines[i].bits);
  transpose(rows);
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) lines[i].bits = _mm512_castps_si512(rows[i]);
  if constexpr (sizeof(T) == 1) {
    // Four dims of each token, so far: the first two of all, then the others.
    const __m512i halves =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    QUIRE_UNROLL
    for (Line& line : lines) line.bits = _mm512_permutexvar_epi16(halves, line.bits);
  }
}

// Two tokens, 32 dims of 16 bits: dims 0..15, then 16..31.
QUIRE_INLINE void interleave_words(__m512i even, __m512i odd, __m512i& first,
                                   __m512i& second) noexcept {
  const __m512i low = _mm512_unpacklo_epi16(even, odd);
  const __m512i high = _mm512_unpackhi_epi16(even, odd);
  first = _mm512_permutex2var_epi64(low, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high);
  second = _mm512_permutex2var_epi64(low, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), high);
}

// Four tokens, 64 dims of 8 bits: out[i] holds dims 16 i .. 16 i + 15.
QUIRE_INLINE void interleave_bytes(const Line* tokens, __m512i (&out)[4]) noexcept {
  const __m512i low01 = _mm512_unpacklo_epi8(tokens[0].bits, tokens[1].bits);
  const __m512i high01 = _mm512_unpackhi_epi8(tokens[0].bits, tokens[1].bits);
  const __m512i low23 = _mm512_unpacklo_epi8(tokens[2].bits, tokens[3].bits);
  const __m512i high23 = _mm512_unpackhi_epi8(tokens[2].bits, tokens[3].bits);
  // Lanes 0 and 2, then 1 and 3, of two registers; then the lanes of one dim group.
  const __m512i even01 = _mm512_shuffle_i32x4(low01, high01, 0x88);
  const __m512i odd01 = _mm512_shuffle_i32x4(low01, high01, 0xdd);
  const __m512i even23 = _mm512_shuffle_i32x4(low23, high23, 0x88);
  const __m512i odd23 = _mm512_shuffle_i32x4(low23, high23, 0xdd);
  out[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
  out[1] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
  out[2] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
  out[3] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
}

// lines[t] holds a line of dims of token t; becomes [dim / 16][t / 2][dim % 16][t % 2].
template <class T>
QUIRE_INLINE void pair_tokens(Line (&lines)[16]) noexcept {
  Line out[16];
  if constexpr (sizeof(T) == 2) {
    QUIRE_UNROLL
    for (int pair = 0; pair < 8; ++pair) {
      interleave_words(lines[2 * pair].bits, lines[2 * pair + 1].bits, out[pair].bits,
                       out[8 + pair].bits);
    }
  } else {
    QUIRE_UNROLL
    for (int four = 0; four < 4; ++four) {
      __m512i groups[4];
      interleave_bytes(lines + 4 * four, groups);
      QUIRE_UNROLL
      for (int group = 0; group < 4; ++group) out[4 * group + four].bits = groups[group];
    }
  }
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) lines[i] = out[i];
}

// 16 elements as the lower or upper halves of words whose other halves stay as they are: one store,
// which writes nothing of the others.
template <class T>
QUIRE_INLINE void store_halves(T* words, const T* from, bool upper) noexcept {
  if constexpr (sizeof(T) == 2) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m512i low = _mm512_cvtepu16_epi32(x);
    _mm512_mask_storeu_epi16(words, upper ? 0xaaaaaaaaU : 0x55555555U,
                             upper ? _mm512_slli_epi32(low, 16) : low);
  } else {
    static_assert(sizeof(T) == 1);
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i low = _mm256_cvtepu8_epi16(x);
    _mm256_mask_storeu_epi8(words, upper ? 0xaaaaaaaaU : 0x55555555U,
                            upper ? _mm256_slli_epi16(low, 8) : low);
  }
}
inline constexpr bool kStoresHalves = true;
