// SPDX-License-Identifier: Apache-2.0
// Lines of the level avx2: 64 bytes of stored elements in two registers. Included inside the target
// region, into the level's namespace, after vec.inl.
//
// 16-bit formats are rounded on integers or by a named mode; 8-bit ones by the mode of the
// processor, as are the divisions of quantize(): to nearest even, unless the caller changed it.

struct Line {
  __m256i low;
  __m256i high;
};

QUIRE_INLINE void store_line(void* p, const Line& line) noexcept {
  _mm256_storeu_si256(static_cast<__m256i*>(p), line.low);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, line.high);
}
// Past the caches. REQUIRES: p is a multiple of 64; end_stream() at the end.
QUIRE_INLINE void stream_line(void* p, const Line& line) noexcept {
  _mm256_stream_si256(static_cast<__m256i*>(p), line.low);
  _mm256_stream_si256(static_cast<__m256i*>(p) + 1, line.high);
}
// What was streamed comes before what this thread writes next.
QUIRE_INLINE void end_stream() noexcept {
  _mm_sfence();
}

// |x|, 0 where x is infinite or NaN.
QUIRE_INLINE Vec finite_magnitudes(Vec x) noexcept {
  const Vec magnitude = abs(x);
  const __m256i finite = _mm256_cmpgt_epi32(
      _mm256_set1_epi32(number_formats_internal::kInfinityBits), _mm256_castps_si256(magnitude));
  return _mm256_and_ps(magnitude, _mm256_castsi256_ps(finite));
}

QUIRE_INLINE Vec divide(Vec x, const Divisor& by) noexcept {
  return by.divides ? div(x, set1(by.factor)) : mul(x, set1(by.factor));
}

QUIRE_INLINE __m256i nan_lanes(Vec x) noexcept {
  return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
// A NaN becomes quiet, as by any operation on it.
QUIRE_INLINE __m256i quiet(Vec x) noexcept {
  return _mm256_or_si256(_mm256_castps_si256(x),
                         _mm256_and_si256(nan_lanes(x), _mm256_set1_epi32(0x400000)));
}
// The same of 16-bit formats, by their infinity and the upper bit of their mantissa.
QUIRE_INLINE __m256i quiet_words(__m256i x, short infinity, short quiet_bit) noexcept {
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
  const __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(infinity));
  return _mm256_or_si256(x, _mm256_and_si256(nan, _mm256_set1_epi16(quiet_bit)));
}

// The bf16 that f32 round to, in 32 bits each.
QUIRE_INLINE __m256i round_to_bf16(Vec x) noexcept {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet(x), nan_lanes(x)), 16);
}

// The codes of the magnitudes of an 8-bit float, plus kCodeOffset, in 32 bits; of a NaN any. A sum
// with a number whose last bit counts as much as the last bit of the code rounds to that; where the
// exponent is clamped, to subnormals too.
template <class Float8>
inline constexpr int kDroppedBits = 23 - NumberFormat<Float8>::kMantissaBits;
template <class Float8>
inline constexpr int kSmallestNormal = (128 - NumberFormat<Float8>::kExponentBias) << 23;
template <class Float8>
inline constexpr int kCodeOffset = kSmallestNormal<Float8> >> kDroppedBits<Float8>;

template <class Float8>
QUIRE_INLINE __m256i offset_codes(Vec x) noexcept {
  constexpr int kLargest = number_formats_internal::bits_of(NumberFormat<Float8>::kMaxFinite);
  const __m256i magnitude =
      _mm256_min_epi32(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)),
                       _mm256_set1_epi32(kLargest));
  const __m256i exponent =
      _mm256_max_epi32(_mm256_and_si256(magnitude, _mm256_set1_epi32(0x7f800000)),
                       _mm256_set1_epi32(kSmallestNormal<Float8>));
  const __m256i unit = _mm256_add_epi32(exponent, _mm256_set1_epi32(kDroppedBits<Float8> << 23));
  const Vec sum = add(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(unit));
  const __m256i count = _mm256_sub_epi32(_mm256_castps_si256(sum), unit);
  return _mm256_add_epi32(count, _mm256_srli_epi32(exponent, kDroppedBits<Float8>));
}

// Integers in 32 bits, at most 127; those below -128 are for the packing to saturate.
QUIRE_INLINE __m256i int8_codes(Vec x) noexcept {
  const Vec number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  return _mm256_cvtps_epi32(_mm256_min_ps(number, set1(127.0F)));
}

// Four vectors of 32-bit integers to bytes, saturated. Packing works in 128-bit lanes: see
// in_order.
QUIRE_INLINE __m256i pack_signed(__m256i a, __m256i b, __m256i c, __m256i d) noexcept {
  return _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
}
// 4-byte groups 4 l + v come from lane l of vector v.
QUIRE_INLINE __m256i in_order(__m256i packed) noexcept {
  return _mm256_permutevar8x32_epi32(packed, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
}

// Signs and NaN are put in as bytes, four times as many at once.
template <class Float8>
QUIRE_INLINE __m256i float8_bytes(const Vec (&x)[4]) noexcept {
  const __m256i offset = _mm256_set1_epi16(kCodeOffset<Float8>);
  const __m256i low = _mm256_sub_epi16(
      _mm256_packus_epi32(offset_codes<Float8>(x[0]), offset_codes<Float8>(x[1])), offset);
  const __m256i high = _mm256_sub_epi16(
      _mm256_packus_epi32(offset_codes<Float8>(x[2]), offset_codes<Float8>(x[3])), offset);
  const __m256i signs = pack_signed(_mm256_castps_si256(x[0]), _mm256_castps_si256(x[1]),
                                    _mm256_castps_si256(x[2]), _mm256_castps_si256(x[3]));
  const __m256i nan =
      pack_signed(nan_lanes(x[0]), nan_lanes(x[1]), nan_lanes(x[2]), nan_lanes(x[3]));
  const __m256i codes =
      _mm256_or_si256(_mm256_packus_epi16(low, high),
                      _mm256_and_si256(signs, _mm256_set1_epi8(static_cast<char>(0x80))));
  return _mm256_blendv_epi8(codes, _mm256_set1_epi8(0x7f), nan);
}

// Half a line of 8-bit elements.
template <class T, class S>
QUIRE_INLINE __m256i encode_bytes(const S* row, const Divisor& by) noexcept {
  Vec x[4];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = divide(load_row(row + 8 * i), by);
  if constexpr (std::is_same_v<T, std::int8_t>) {
    return in_order(
        pack_signed(int8_codes(x[0]), int8_codes(x[1]), int8_codes(x[2]), int8_codes(x[3])));
  } else {
    return in_order(float8_bytes<T>(x));
  }
}

// Half a line of 16-bit elements.
template <class T, class S>
QUIRE_INLINE __m256i encode_words(const S* row) noexcept {
  if constexpr (std::is_same_v<T, S>) {
    constexpr bool kBf16 = std::is_same_v<T, BFloat16>;
    return quiet_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)),
                       kBf16 ? 0x7f80 : 0x7c00, kBf16 ? 0x40 : 0x200);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const __m256i packed =
        _mm256_packus_epi32(round_to_bf16(load_row(row)), round_to_bf16(load_row(row + 8)));
    return _mm256_permute4x64_epi64(packed, 0xd8);
  } else {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm256_set_m128i(_mm256_cvtps_ph(load_row(row + 8), kNearest),
                            _mm256_cvtps_ph(load_row(row), kNearest));
  }
}

// 64 / sizeof(T) elements from `row` as they are stored. Only 8-bit formats divide.
template <class T, class S>
QUIRE_INLINE Line encode(const S* row, const Divisor& by) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    return {quiet(load_row(row)), quiet(load_row(row + 8))};
  } else if constexpr (sizeof(T) == 2) {
    return {encode_words<T>(row), encode_words<T>(row + 16)};
  } else {
    return {encode_bytes<T>(row, by), encode_bytes<T>(row + 32, by)};
  }
}

// 8 tokens x 8 words of lines: word i of all tokens is what out(i) refers to.
template <class In, class Out>
QUIRE_INLINE void transpose_words(In&& in, Out&& out) noexcept {
  Vec rows[8];
  QUIRE_UNROLL
  for (int i = 0; i < 8; ++i) rows[i] = _mm256_castsi256_ps(in(i));
  transpose(rows);
  QUIRE_UNROLL
  for (int i = 0; i < 8; ++i) out(i) = _mm256_castps_si256(rows[i]);
}

// Four dims of each of 8 tokens: the first two of all, then the others.
QUIRE_INLINE __m256i split_fours(__m256i x) noexcept {
  const __m256i order = _mm256_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0,  //
                                        15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0);
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0xd8);
}

// lines[t] holds a line of dims of token t; becomes [dim / 2][t][dim % 2].
template <class T>
QUIRE_INLINE void pair_dims(Line (&lines)[16]) noexcept {
  Line out[16];
  for (int half = 0; half < 2; ++half) {
    const Line* tokens = lines + 8 * half;
    const auto part = [half](Line& line) noexcept -> __m256i& {
      return half == 0 ? line.low : line.high;
    };
    transpose_words([&](int i) noexcept { return tokens[i].low; },
                    [&](int i) noexcept -> __m256i& { return part(out[i]); });
    transpose_words([&](int i) noexcept { return tokens[i].high; },
                    [&](int i) noexcept -> __m256i& { return part(out[8 + i]); });
  }
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) {
    if constexpr (sizeof(T) == 1) {
      const __m256i low = split_fours(out[i].low);
      const __m256i high = split_fours(out[i].high);
      lines[i] = {_mm256_permute2x128_si256(low, high, 0x20),
                  _mm256_permute2x128_si256(low, high, 0x31)};
    } else {
      lines[i] = out[i];
    }
  }
}

// lines[t] holds a line of dims of token t; becomes [dim / 16][t / 2][dim % 16][t % 2].
template <class T>
QUIRE_INLINE void pair_tokens(Line (&lines)[16]) noexcept {
  Line out[16];
  QUIRE_UNROLL
  for (int pair = 0; pair < 8; ++pair) {
    const Line& even = lines[2 * pair];
    const Line& odd = lines[2 * pair + 1];
    const auto interleave = [](__m256i a, __m256i b) noexcept -> Line {
      const bool words = sizeof(T) == 2;
      const __m256i low = words ? _mm256_unpacklo_epi16(a, b) : _mm256_unpacklo_epi8(a, b);
      const __m256i high = words ? _mm256_unpackhi_epi16(a, b) : _mm256_unpackhi_epi8(a, b);
      return {_mm256_permute2x128_si256(low, high, 0x20),
              _mm256_permute2x128_si256(low, high, 0x31)};
    };
    const Line first = interleave(even.low, odd.low);
    const Line second = interleave(even.high, odd.high);
    if constexpr (sizeof(T) == 2) {  // 16 dims of a pair are a line
      out[pair] = first;
      out[8 + pair] = second;
    } else {  // and here half a line
      const int four = pair / 2;
      const auto part = [pair](Line& line) noexcept -> __m256i& {
        return pair % 2 == 0 ? line.low : line.high;
      };
      part(out[four]) = first.low;
      part(out[4 + four]) = first.high;
      part(out[8 + four]) = second.low;
      part(out[12 + four]) = second.high;
    }
  }
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) lines[i] = out[i];
}

// There is no store of every other element (store_halves).
inline constexpr bool kStoresHalves = false;
