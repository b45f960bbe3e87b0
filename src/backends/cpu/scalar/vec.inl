// SPDX-License-Identifier: Apache-2.0
// Vectors of the portable level: four floats, which every 64-bit CPU has, by the compiler's vector
// extensions; the definition that the vectors of other levels are held to. Included into the
// level's namespace.

inline constexpr int kLanes = 4;
inline constexpr int kBlockVectors = 2;  // 4 rows of 2 accumulators, of 16 registers
using Vec = float __attribute__((vector_size(16)));
using IntVec = std::int32_t __attribute__((vector_size(16)));

QUIRE_INLINE Vec load(const float* p) noexcept {
  Vec x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
QUIRE_INLINE void store(float* p, Vec x) noexcept {
  __builtin_memcpy(p, &x, sizeof(x));
}
QUIRE_INLINE Vec set1(float x) noexcept {
  return Vec{x, x, x, x};
}
QUIRE_INLINE Vec zero() noexcept {
  return set1(0.0F);
}
QUIRE_INLINE Vec add(Vec a, Vec b) noexcept {
  return a + b;
}
QUIRE_INLINE Vec sub(Vec a, Vec b) noexcept {
  return a - b;
}
QUIRE_INLINE Vec mul(Vec a, Vec b) noexcept {
  return a * b;
}
QUIRE_INLINE Vec div(Vec a, Vec b) noexcept {
  return a / b;
}
QUIRE_INLINE Vec choose(IntVec mask, Vec x, Vec y) noexcept {
  return (Vec)(((IntVec)x & mask) | ((IntVec)y & ~mask));
}
QUIRE_INLINE Vec abs(Vec a) noexcept {
  return (Vec)((IntVec)a & 0x7fffffff);
}
QUIRE_INLINE Vec iota() noexcept {
  return Vec{0, 1, 2, 3};
}
// a * b + c; rounded twice, since the baseline of x86-64 has no fused one.
QUIRE_INLINE Vec fma(Vec a, Vec b, Vec c) noexcept {
  return a * b + c;
}
// a * b - c, rounded once: the difference of two large numbers that must cancel.
QUIRE_INLINE Vec exact_fms(Vec a, Vec b, Vec c) noexcept {
  using Wide = double __attribute__((vector_size(32)));
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
  return __builtin_convertvector(product - __builtin_convertvector(c, Wide), Vec);
}
// The larger one; b where either is NaN.
QUIRE_INLINE Vec max_of(Vec a, Vec b) noexcept {
  return choose(a > b, a, b);
}
QUIRE_INLINE float reduce_max(Vec a) noexcept {
  const float low = a[0] > a[1] ? a[0] : a[1];
  const float high = a[2] > a[3] ? a[2] : a[3];
  return low > high ? low : high;
}
QUIRE_INLINE float reduce_add(Vec a) noexcept {
  return (a[0] + a[2]) + (a[1] + a[3]);
}
QUIRE_INLINE bool any(IntVec mask) noexcept {
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}
QUIRE_INLINE bool any_greater(Vec a, Vec b) noexcept {
  return any(a > b);
}
QUIRE_INLINE bool any_nan(Vec a) noexcept {
  return any(a != a);
}
// a < b ? x : y, lane by lane; y where either is NaN.
QUIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) noexcept {
  return choose(a < b, x, y);
}
// a == 0 ? 0 : b.
QUIRE_INLINE Vec zero_where_zero(Vec a, Vec b) noexcept {
  return choose(a == 0.0F, zero(), b);
}
// Lanes [begin, end) of x, others of y. Any begin and end.
QUIRE_INLINE Vec keep_lanes(Vec x, std::int64_t begin, std::int64_t end, Vec y) noexcept {
  Vec result = y;
  for (int i = 0; i < kLanes; ++i) {
    if (i >= begin && i < end) result[i] = x[i];
  }
  return result;
}

// 2^x: 0 for -inf and below f32's normal numbers, NaN for NaN, 2^127 from 127 on. A polynomial of
// the fraction, the integer part in the exponent.
template <int kDegree>
QUIRE_INLINE Vec exp2(Vec x) noexcept {
  const IntVec small = x < -126.0F;
  const Vec clamped = choose(small, set1(-126.0F), choose(x > 127.0F, set1(127.0F), x));
  const Vec magic = set1(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  Vec whole = (clamped + magic) - magic;
  whole = choose(whole > clamped, whole - 1.0F, whole);
  const Vec r = clamped - whole;
  Vec p = set1(Exp2<kDegree>::kCoefficients[0]);
  QUIRE_UNROLL
  for (int i = 1; i <= kDegree; ++i) p = fma(p, r, set1(Exp2<kDegree>::kCoefficients[i]));
  // A NaN has no integer part: its bits stay as the polynomial left them.
  const IntVec exponent = __builtin_convertvector(choose(x == x, whole, zero()), IntVec) << 23;
  return choose(small, zero(), (Vec)((IntVec)p + exponent));
}

// kLanes consecutive elements as floats.
template <class T>
QUIRE_INLINE Vec load_row(const T* p) noexcept {
  return Vec{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
}

// Elements 2i and 2i + 1 of 2 * kLanes consecutive ones in lanes i of even and odd.
struct Pair {
  Vec even;
  Vec odd;
};
template <class T>
QUIRE_INLINE Pair load_pair(const T* p) noexcept {
  return {Vec{to_float(p[0]), to_float(p[2]), to_float(p[4]), to_float(p[6])},
          Vec{to_float(p[1]), to_float(p[3]), to_float(p[5]), to_float(p[7])}};
}
QUIRE_INLINE Pair load_pair(const BFloat16* p) noexcept {
  IntVec x;
  __builtin_memcpy(&x, p, sizeof(x));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return {(Vec)(x << 16), (Vec)(x & static_cast<std::int32_t>(0xffff0000))};
#else
  return {(Vec)(x & static_cast<std::int32_t>(0xffff0000)), (Vec)(x << 16)};
#endif
}

// kLanes floats as consecutive elements, rounded to nearest even.
template <class T>
QUIRE_INLINE void store_row(T* p, Vec x) noexcept {
  for (int i = 0; i < kLanes; ++i) p[i] = from_float<T>(x[i]);
}

// rows[i] lane j becomes rows[j] lane i.
QUIRE_INLINE void transpose(Vec (&rows)[kLanes]) noexcept {
  Vec out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = Vec{rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
  for (int i = 0; i < kLanes; ++i) rows[i] = out[i];
}

// Lane i of the result is the sum of the lanes of x[i].
QUIRE_INLINE Vec add_lanes(const Vec (&x)[kLanes]) noexcept {
  return Vec{reduce_add(x[0]), reduce_add(x[1]), reduce_add(x[2]), reduce_add(x[3])};
}
