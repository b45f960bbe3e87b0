// SPDX-License-Identifier: Apache-2.0
// int8 as bf16, by way of f32.

QUIRE_INLINE __m512i load_bf16x32(const std::int8_t* p) noexcept {
  const auto* first = reinterpret_cast<const __m128i*>(p);
  return to_bf16x32(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(first))),
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(first + 1))));
}
