// SPDX-License-Identifier: Apache-2.0
// What levels that multiply pairs of bf16 share: stored formats as bf16, panels of pairs. Included
// inside a target region after avx512/vec.inl, avx512_bf16/instructions.inl and the int8.inl of the
// level, in levels that have AVX512_BF16 and VBMI.
//
//   K panel [padded head_dim / 2][width][2], V panel [width / 2][padded value_dim][2]: the rows of
//   an AMX tile, and of vdpbf16ps. Every 8-bit code is exact in bf16.

// bf16 of the magnitudes of the 128 codes of e4m3, high and low bytes apart.
struct MagnitudeTables {
  alignas(64) std::uint8_t high[128];
  alignas(64) std::uint8_t low[128];
};
constexpr MagnitudeTables make_magnitude_tables() {
  MagnitudeTables tables{};
  for (int code = 0; code < 128; ++code) {
    const float x = to_float(Float8E4M3{static_cast<std::uint8_t>(code)});
    const auto bits = static_cast<std::uint32_t>(__builtin_bit_cast(std::int32_t, x));
    tables.high[code] = static_cast<std::uint8_t>(bits >> 24);
    tables.low[code] = static_cast<std::uint8_t>(bits >> 16);
  }
  return tables;
}
inline constexpr MagnitudeTables kE4M3 = make_magnitude_tables();

// Low and high bytes of the bf16 of 64 codes.
struct SplitBytes {
  __m512i low;
  __m512i high;
};
QUIRE_INLINE SplitBytes split_bf16(__m512i codes) noexcept {
  const auto look_up = [&](const std::uint8_t* table) QUIRE_INLINE_LAMBDA {  // by seven bits
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  };
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  return {look_up(kE4M3.low),
          _mm512_ternarylogic_epi32(look_up(kE4M3.high), codes, sign, 0xf8)};  // | (codes & sign)
}

// 64 elements as two vectors of 32 bf16.
struct Bf16x64 {
  __m512i low;
  __m512i high;
};
QUIRE_INLINE Bf16x64 load_bf16x64(const Float8E4M3* p) noexcept {
  // unpack takes the halves of 128-bit lanes, so bytes 8 i .. go to lane i first.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const SplitBytes bytes = split_bf16(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(p)));
  return {_mm512_unpacklo_epi8(bytes.low, bytes.high), _mm512_unpackhi_epi8(bytes.low, bytes.high)};
}
// 32 words of f16 as bf16, exact for those that came from 8 bits.
QUIRE_INLINE __m512i half_to_bf16(__m512i x) noexcept {
  const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
  const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
  return to_bf16x32(low, high);
}
QUIRE_INLINE __m512i load_bf16x32(const BFloat16* p) noexcept {
  return _mm512_loadu_si512(p);
}
QUIRE_INLINE __m512i load_bf16x32(const Float8E5M2* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return half_to_bf16(_mm512_slli_epi16(_mm512_cvtepu8_epi16(x), 8));
}
QUIRE_INLINE __m512i load_bf16x32(const Float8E4M3* p) noexcept {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i order = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
  const SplitBytes bytes = split_bf16(_mm512_permutexvar_epi64(order, _mm512_castsi256_si512(x)));
  return _mm512_unpacklo_epi8(bytes.low, bytes.high);
}
template <class T>
QUIRE_INLINE Bf16x64 load_bf16x64(const T* p) noexcept {
  return {load_bf16x32(p), load_bf16x32(p + 32)};
}
// 32 elements of a row of `left` more, 0 beyond.
template <class T>
QUIRE_INLINE __m512i load_bf16_part(const T* p, std::int64_t left) noexcept {
  if (left >= 32) return load_bf16x32(p);
  alignas(64) T buffer[32] = {};
  for (std::int64_t i = 0; i < left; ++i) buffer[i] = p[i];
  return load_bf16x32(buffer);
}
QUIRE_INLINE void store_bf16(BFloat16* p, __m512i x) noexcept {
  _mm512_storeu_si512(p, x);
}

// Words of even and odd in turn: pairs of the first 16, and of the last 16.
QUIRE_INLINE Bf16x64 interleave(__m512i even, __m512i odd) noexcept {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(even, low, odd), _mm512_permutex2var_epi16(even, high, odd)};
}

template <class T>
inline void pack_plain_keys(const T* const* rows, std::int64_t dims, BFloat16* panel,
                            std::int64_t width, PrefetchWalk& ahead) noexcept {
  for (std::int64_t j = 0; j < width; j += 16) {
    for (std::int64_t d = 0; d < dims; d += 32) {
      Vec block[16];
      QUIRE_UNROLL
      for (int i = 0; i < 16; ++i) {
        block[i] =
            _mm512_castsi512_ps(rows[j + i] != nullptr ? load_bf16_part(rows[j + i] + d, dims - d)
                                                       : _mm512_setzero_si512());
      }
      transpose(block);
      ahead.template steps<static_cast<int>(16 * 32 * sizeof(T) / 64)>();
      QUIRE_UNROLL
      for (int i = 0; i < 16; ++i) {
        store_bf16(panel + (d / 2 + i) * 2 * width + 2 * j, _mm512_castps_si512(block[i]));
      }
    }
  }
}

template <class T>
inline void pack_tiled_keys(const T* const* units, std::int64_t dims, BFloat16* panel,
                            std::int64_t width) noexcept {
  for (std::int64_t pair = 0; pair < padded_dims(dims) / 2; ++pair) {
    for (std::int64_t u = 0; u < width / kPairTile; ++u) {
      const bool present = units[u] != nullptr && 2 * pair < dims;
      store_bf16(panel + pair * 2 * width + u * 2 * kPairTile,
                 present ? load_bf16x32(units[u] + pair * 2 * kPairTile) : _mm512_setzero_si512());
    }
  }
}

template <class T>
inline void pack_plain_values(const T* const* rows, std::int64_t num_keys, std::int64_t dims,
                              BFloat16* panel, std::int64_t stride, PrefetchWalk& ahead) noexcept {
  for (std::int64_t j = 0; j < num_keys; j += 2) {
    if (rows[j] != nullptr && rows[j + 1] != nullptr && dims % 32 == 0) [[likely]] {
      const T* even = rows[j];
      const T* odd = rows[j + 1];
      BFloat16* out = panel + j * stride;
      for (std::int64_t d = 0; d < dims; d += 32) {
        const Bf16x64 x = interleave(load_bf16x32(even + d), load_bf16x32(odd + d));
        store_bf16(out + 2 * d, x.low);
        store_bf16(out + 2 * d + 32, x.high);
        ahead.template steps<static_cast<int>(2 * 32 * sizeof(T) / 64)>();
      }
      continue;
    }
    for (std::int64_t d = 0; d < dims; d += 32) {
      const auto load = [&](const T* row) __attribute__((always_inline)) {
        return row != nullptr ? load_bf16_part(row + d, dims - d) : _mm512_setzero_si512();
      };
      const Bf16x64 x = interleave(load(rows[j]), load(rows[j + 1]));
      ahead.template steps<static_cast<int>(2 * 32 * sizeof(T) / 64)>();
      store_bf16(panel + j * stride + 2 * d, x.low);
      store_bf16(panel + j * stride + 2 * d + 32, x.high);
    }
  }
}

template <class T>
inline void pack_tiled_values(const T* const* units, std::int64_t tile_stride,
                              std::int64_t num_units, std::int64_t dims, BFloat16* panel,
                              std::int64_t stride) noexcept {
  for (std::int64_t u = 0; u < num_units; ++u) {
    for (std::int64_t i = 0; i < kPairTile; i += 2) {
      for (std::int64_t d = 0; d < dims; d += kPairTile) {
        const T* tile = units[u] + d / kPairTile * tile_stride + i * kPairTile;
        store_bf16(panel + (u * kPairTile + i) * stride + 2 * d,
                   units[u] != nullptr ? load_bf16x32(tile) : _mm512_setzero_si512());
      }
      if (dims % 32 != 0) {
        store_bf16(panel + (u * kPairTile + i) * stride + 2 * dims, _mm512_setzero_si512());
      }
    }
  }
}

// V that is the first dims of tiled K.
template <class T>
inline void pack_values_of_keys(const T* const* units, std::int64_t num_units, std::int64_t dims,
                                BFloat16* panel, std::int64_t stride) noexcept {
  for (std::int64_t j = 0; j < num_units * kPairTile; ++j) {
    const T* unit = units[j / kPairTile];
    BFloat16* out = panel + j / 2 * 2 * stride + j % 2;
    for (std::int64_t d = 0; d < stride; ++d) {
      const bool present = unit != nullptr && d < dims;
      out[2 * d] = present ? from_float<BFloat16>(
                                 to_float(unit[d / 2 * 2 * kPairTile + j % kPairTile * 2 + d % 2]))
                           : BFloat16{0};
    }
  }
}

// What both ways of multiplying pairs share.
struct Bf16Base {
  using A = BFloat16;
  using Panel = BFloat16;
  QUIRE_INLINE static Vec power_of_two(Vec x) noexcept { return exp2<3>(x); }
  template <class T>
  static std::int64_t few_rows_chunk(const AttendCall& /*call*/) noexcept {
    return kChunk;
  }
  static constexpr bool kLongChunks = false;  // of twice kChunk, beside kWideChunk
  static constexpr bool kOnlyTiles = false;
  static constexpr bool kRoundsRows = false;

  static constexpr std::int64_t panel_pairs(std::int64_t dims) noexcept {
    return padded_dims(dims) / 2;
  }

  template <class T>
  QUIRE_INLINE static void load_query(const T* q, std::int64_t dims, std::int64_t stride,
                                      BFloat16* out) noexcept {
    if constexpr (std::is_same_v<T, BFloat16>) {
      for (std::int64_t d = 0; d < stride; d += 32) {
        store_bf16(out + d, d < dims ? load_bf16_part(q + d, dims - d) : _mm512_setzero_si512());
      }
    }
  }

  QUIRE_INLINE static void store_weights(BFloat16* p, Vec x) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16x16(x));
  }
  // Two vectors of weights, rounded.
  using Weights = __m512i;
  QUIRE_INLINE static Weights round_weights(Vec first, Vec last) noexcept {
    return to_bf16x32(first, last);
  }
  QUIRE_INLINE static void store_weights(BFloat16* p, Weights x) noexcept { store_bf16(p, x); }
  // A product with a scale has more digits than bf16: what the upper half of f32 leaves is stored
  // kLowWeights further on, and multiplied too.
  static constexpr std::int64_t kLowWeights = kMaxScores;
  QUIRE_INLINE static Vec upper_half(Vec x) noexcept {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
  }
  // Nothing is left of what is not finite.
  QUIRE_INLINE static Vec lower_half(Vec x, Vec upper) noexcept {
    constexpr int kNotFinite = 0x99;
    return _mm512_maskz_sub_ps(static_cast<__mmask16>(~_mm512_fpclass_ps_mask(x, kNotFinite)), x,
                               upper);
  }
  QUIRE_INLINE static void store_scaled_weights(BFloat16* p, Vec x) noexcept {
    const Vec high = upper_half(x);
    store_weights(p, high);
    store_weights(p + kLowWeights, lower_half(x, high));
  }
  QUIRE_INLINE static void store_scaled_weights(BFloat16* p, Vec first, Vec last) noexcept {
    const Vec high[2] = {upper_half(first), upper_half(last)};
    store_bf16(p, to_bf16x32(high[0], high[1]));
    store_bf16(p + kLowWeights, to_bf16x32(lower_half(first, high[0]), lower_half(last, high[1])));
  }

  // 0 for the keys of a V panel that no row may see.
  static void clear_absent(const Chunk& chunk, std::int64_t num_keys, std::int64_t dims,
                           BFloat16* panel, std::int64_t stride) noexcept {
    for (std::int64_t j = 0; j < num_keys; ++j) {
      if (chunk.v[j] != kAbsent) continue;
      BFloat16* row = panel + j / 2 * 2 * stride + j % 2;
      for (std::int64_t d = 0; d < dims; ++d) row[2 * d] = BFloat16{0};
    }
  }
  static bool all_finite(const BFloat16* panel, std::int64_t stride, std::int64_t num_keys,
                         std::int64_t dims) noexcept {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (std::int64_t j = 0; j < num_keys; j += 2) {
      for (std::int64_t d = 0; d < dims; d += kPairTile) {
        const __m512i x = _mm512_loadu_si512(panel + j * stride + 2 * d);
        if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent) != 0) return false;
      }
    }
    return true;
  }
  static void clear_not_finite(BFloat16* panel, std::int64_t stride, std::int64_t num_keys,
                               std::int64_t dims) noexcept {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (std::int64_t j = 0; j < num_keys; j += 2) {
      for (std::int64_t d = 0; d < dims; d += kPairTile) {
        BFloat16* place = panel + j * stride + 2 * d;
        const __m512i x = _mm512_loadu_si512(place);
        const __mmask32 finite = _mm512_cmpneq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        store_bf16(place, _mm512_maskz_mov_epi16(finite, x));
      }
    }
  }
  // Of a key, as it is multiplied; with `low` both of its parts.
  static float weight(const BFloat16* p, bool low) noexcept {
    return to_float(*p) + (low ? to_float(p[kLowWeights]) : 0.0F);
  }
};
