// SPDX-License-Identifier: Apache-2.0
// src/backends/cpu/avx512_bf16/instructions.inl by AVX-512 alone, for tests on machines without
// those instructions: numbers as Intel defines them, subnormal ones as 0.

namespace emulated {

// 0 for subnormal numbers, of either sign.
QUIRE_INLINE __m512 without_subnormals(__m512 x) noexcept {
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000)));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, tiny, sign));
}
// Both elements of every pair as f32.
QUIRE_INLINE __m512 even_of(__m512i pairs) noexcept {
  return without_subnormals(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
}
QUIRE_INLINE __m512 odd_of(__m512i pairs) noexcept {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return without_subnormals(_mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
}

}  // namespace emulated

QUIRE_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) noexcept {
  // The odd product first, as vdpbf16ps does.
  sum = _mm512_fmadd_ps(emulated::odd_of(a), emulated::odd_of(b), sum);
  sum = emulated::without_subnormals(sum);
  sum = _mm512_fmadd_ps(emulated::even_of(a), emulated::even_of(b), sum);
  return emulated::without_subnormals(sum);
}

QUIRE_INLINE __m256i to_bf16x16(__m512 x) noexcept {
  const __m512i bits = _mm512_castps_si512(emulated::without_subnormals(x));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

QUIRE_INLINE __m512i to_bf16x32(__m512 first, __m512 last) noexcept {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16x16(first)), to_bf16x16(last), 1);
}

QUIRE_INLINE __m512i dot_words(__m512i sum, __m512i a, __m512i b) noexcept {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

QUIRE_INLINE __m512i dot_bytes(__m512i sum, __m512i a, __m512i b) noexcept {
  const __m512i even = _mm512_and_si512(a, _mm512_set1_epi16(0xff));
  const __m512i odd = _mm512_srli_epi16(a, 8);
  const __m512i even_b = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8);
  const __m512i odd_b = _mm512_srai_epi16(b, 8);
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, even_b));
  return _mm512_add_epi32(sum, _mm512_madd_epi16(odd, odd_b));
}
