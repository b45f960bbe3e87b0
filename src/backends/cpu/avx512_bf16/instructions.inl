// SPDX-License-Identifier: Apache-2.0
// The instructions of AVX512_BF16 and AVX512_VNNI that the levels avx512_bf16 and amx use, which no
// other file names. tests/emulated_cpu/ has the same functions for machines without them.

// sum + the products of both elements of every pair.
QUIRE_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) noexcept {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
// Rounded to nearest even; subnormal numbers become 0.
QUIRE_INLINE __m256i to_bf16x16(__m512 x) noexcept {
  return (__m256i)_mm512_cvtneps_pbh(x);
}
QUIRE_INLINE __m512i to_bf16x32(__m512 first, __m512 last) noexcept {
  return (__m512i)_mm512_cvtne2ps_pbh(last, first);
}
// The same of pairs of 16-bit integers.
QUIRE_INLINE __m512i dot_words(__m512i sum, __m512i a, __m512i b) noexcept {
  return _mm512_dpwssd_epi32(sum, a, b);
}
// The same of fours of bytes, those of a without and those of b with a sign.
QUIRE_INLINE __m512i dot_bytes(__m512i sum, __m512i a, __m512i b) noexcept {
  return _mm512_dpbusd_epi32(sum, a, b);
}
