// SPDX-License-Identifier: Apache-2.0
// Lines of the portable level: 64 bytes of stored elements, by plain loops; the definition that the
// lines of other levels are held to. Included into the level's namespace after vec.inl.

struct Line {
  alignas(64) unsigned char bytes[64];
};

QUIRE_INLINE void store_line(void* p, const Line& line) noexcept {
  __builtin_memcpy(p, line.bytes, sizeof(line.bytes));
}
// Past the caches, where there is a way. REQUIRES: p is a multiple of 64; end_stream() at the end.
QUIRE_INLINE void stream_line(void* p, const Line& line) noexcept {
  store_line(p, line);
}
// What was streamed comes before what this thread writes next.
QUIRE_INLINE void end_stream() noexcept {}

// |x|, 0 where x is infinite or NaN.
QUIRE_INLINE Vec finite_magnitudes(Vec x) noexcept {
  const Vec magnitude = abs(x);
  return choose((IntVec)magnitude < number_formats_internal::kInfinityBits, magnitude, zero());
}

QUIRE_INLINE float divide(float x, const Divisor& by) noexcept {
  return by.divides ? x / by.factor : x * by.factor;
}

// A NaN becomes quiet, as by any operation on it.
QUIRE_INLINE float quiet(float x) noexcept {
  namespace internal = number_formats_internal;
  const std::int32_t bits = internal::bits_of(x);
  const bool is_nan = (bits & ~internal::kSignBit) > internal::kInfinityBits;
  return internal::float_of(is_nan ? bits | 0x400000 : bits);
}

// 64 / sizeof(T) elements from `row` as they are stored. Only 8-bit formats divide.
template <class T, class S>
QUIRE_INLINE Line encode(const S* row, const Divisor& by) noexcept {
  constexpr int kCount = 64 / sizeof(T);
  T stored[kCount];
  for (int i = 0; i < kCount; ++i) {
    const float x = to_float(row[i]);
    if constexpr (sizeof(T) == 1) {
      stored[i] = from_float<T>(divide(x, by));
    } else {
      stored[i] = from_float<T>(quiet(x));
    }
  }
  Line line;
  __builtin_memcpy(line.bytes, stored, sizeof(line.bytes));
  return line;
}

// lines[t] holds a line of dims of token t; becomes [dim / 2][t][dim % 2].
template <class T>
inline void pair_dims(Line (&lines)[16]) noexcept {
  constexpr int kWordBytes = 2 * sizeof(T);
  unsigned char out[16 * 64];
  for (int word = 0; word < 64 / kWordBytes; ++word) {
    for (int t = 0; t < 16; ++t) {
      __builtin_memcpy(out + (word * 16 + t) * kWordBytes, lines[t].bytes + word * kWordBytes,
                       kWordBytes);
    }
  }
  __builtin_memcpy(lines, out, sizeof(out));
}

// lines[t] holds a line of dims of token t; becomes [dim / 16][t / 2][dim % 16][t % 2].
template <class T>
inline void pair_tokens(Line (&lines)[16]) noexcept {
  constexpr int kCount = 64 / sizeof(T);
  unsigned char out[16 * 64];
  for (int dim = 0; dim < kCount; ++dim) {
    for (int t = 0; t < 16; ++t) {
      const int to = dim / 16 * 256 + t / 2 * 32 + dim % 16 * 2 + t % 2;
      __builtin_memcpy(out + to * static_cast<int>(sizeof(T)),
                       lines[t].bytes + dim * static_cast<int>(sizeof(T)), sizeof(T));
    }
  }
  __builtin_memcpy(lines, out, sizeof(out));
}

// There is no store of every other element (store_halves).
inline constexpr bool kStoresHalves = false;
