// SPDX-License-Identifier: Apache-2.0
#include "backends/dense/widen.h"

#include <array>
#include <cstddef>

#include "base/cpu_features.h"
#include "base/float_rows.h"
#include "base/number_formats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::dense {
namespace {

using Table = std::array<float, 256>;

template <class T>
constexpr Table make_table() {
  Table table{};
  for (std::size_t code = 0; code < table.size(); ++code) {
    table[code] = to_float(__builtin_bit_cast(T, static_cast<std::uint8_t>(code)));
  }
  return table;
}

template <class T>
void widen_by_table(const void* base, std::int64_t offset, std::int64_t count,
                    float* __restrict out) noexcept {
  static constexpr Table kTable = make_table<T>();
  const auto* codes = static_cast<const std::uint8_t*>(base) + offset;
  for (std::int64_t i = 0; i < count; ++i) out[i] = kTable[codes[i]];
}

#if defined(__x86_64__)
[[gnu::target("avx,f16c")]] void widen_f16_by_processor(const Float16* in, std::int64_t count,
                                                        float* __restrict out) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(codes));
  }
  for (; i < count; ++i) out[i] = to_float(in[i]);
}
#endif

void widen_f16(const void* base, std::int64_t offset, std::int64_t count, float* out) noexcept {
#if defined(__x86_64__)
  static const bool kHasF16c = detect_cpu_features().f16c;
  if (kHasF16c) {
    widen_f16_by_processor(static_cast<const Float16*>(base) + offset, count, out);
    return;
  }
#endif
  load_floats(DType::kF16, base, offset, count, out);
}

}  // namespace

void widen(DType dtype, const void* base, std::int64_t offset, std::int64_t count,
           float* out) noexcept {
  switch (dtype) {
    case DType::kF16:
      widen_f16(base, offset, count, out);
      return;
    case DType::kF8E4M3:
      widen_by_table<Float8E4M3>(base, offset, count, out);
      return;
    case DType::kF8E5M2:
      widen_by_table<Float8E5M2>(base, offset, count, out);
      return;
    default:
      load_floats(dtype, base, offset, count, out);
  }
}

}  // namespace quire::dense
