// Registers of AVX-512. A mask has one bit for each lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/x86.hpp"

namespace gradcomp {
namespace avx512 {

#define GRADCOMP_LEVEL GRADCOMP_AVX512
#define GRADCOMP_MM(op) _mm512_##op

using Vector = __m512i;
using Half = __m256i;
using Floats = __m512;
using Bits = std::uint64_t;  // one for each byte of a register
using Mask8 = __mmask64;
using Mask16 = __mmask32;
using Mask32 = __mmask16;

#include "kernels/registers.hpp"

template <typename Element>
GRADCOMP_AVX512 inline Vector set_epi32(Element at) {
  return _mm512_set_epi32(at(15), at(14), at(13), at(12), at(11), at(10), at(9), at(8), at(7),
                          at(6), at(5), at(4), at(3), at(2), at(1), at(0));
}
template <typename Element>
GRADCOMP_AVX512 inline Vector set_epi64(Element at) {
  return _mm512_set_epi64(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0));
}
GRADCOMP_AVX512 inline Half low_half(Vector a) { return _mm512_castsi512_si256(a); }
GRADCOMP_AVX512 inline Half high_half(Vector a) { return _mm512_extracti64x4_epi64(a, 1); }
GRADCOMP_AVX512 inline Vector load_vector(const void* from) { return _mm512_loadu_si512(from); }
GRADCOMP_AVX512 inline void store_vector(void* to, Vector a) { _mm512_storeu_si512(to, a); }
GRADCOMP_AVX512 inline Half load_half(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
GRADCOMP_AVX512 inline void store_half(void* to, Half a) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), a);
}
GRADCOMP_AVX512 inline __m128i load_quarter(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

GRADCOMP_AVX512 inline Vector order_epi64(Vector packed) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}
GRADCOMP_AVX512 inline Vector order_epi32(Vector packed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

GRADCOMP_AVX512 inline Bits movemask_epi8(Vector a) { return _mm512_movepi8_mask(a); }
GRADCOMP_AVX512 inline Bits bits_of(Mask8 mask) { return mask; }
GRADCOMP_AVX512 inline Mask8 to_mask(Bits bits) { return bits; }
GRADCOMP_AVX512 inline Vector movm_epi8(Mask8 mask) { return _mm512_movm_epi8(mask); }
GRADCOMP_AVX512 inline Mask8 cmpgt_epi8(Vector a, Vector b) { return _mm512_cmpgt_epi8_mask(a, b); }
GRADCOMP_AVX512 inline Mask8 cmpeq_epi8(Vector a, Vector b) { return _mm512_cmpeq_epi8_mask(a, b); }
GRADCOMP_AVX512 inline Vector blend_epi8(Mask8 mask, Vector a, Vector b) {
  return _mm512_mask_mov_epi8(a, mask, b);
}
GRADCOMP_AVX512 inline Vector negate_epi8(Mask8 mask, Vector a) {
  return _mm512_mask_sub_epi8(a, mask, _mm512_setzero_si512(), a);
}
GRADCOMP_AVX512 inline Mask8 test_epi8(Vector a, Vector b) { return _mm512_test_epi8_mask(a, b); }
GRADCOMP_AVX512 inline Vector increment_epi8(Mask8 mask, Vector a) {
  return _mm512_mask_add_epi8(a, mask, a, _mm512_set1_epi8(1));
}

GRADCOMP_AVX512 inline Mask16 to_mask16(std::uint64_t bits) { return static_cast<Mask16>(bits); }
GRADCOMP_AVX512 inline Mask16 signs_epi16(Vector a) { return _mm512_movepi16_mask(a); }
GRADCOMP_AVX512 inline Mask8 signs_epi16(Vector low, Vector high) {
  return Mask8{_mm512_movepi16_mask(high)} << 32 | _mm512_movepi16_mask(low);
}
GRADCOMP_AVX512 inline Vector blend_epi16(Mask16 mask, Vector a, Vector b) {
  return _mm512_mask_mov_epi16(a, mask, b);
}
GRADCOMP_AVX512 inline Vector decrement_epi16(Mask16 mask, Vector a) {
  return _mm512_mask_sub_epi16(a, mask, a, _mm512_set1_epi16(1));
}
GRADCOMP_AVX512 inline Vector sign_of(Mask16 mask) {
  return _mm512_mask_mov_epi16(_mm512_set1_epi16(1), mask, _mm512_set1_epi16(-1));
}

GRADCOMP_AVX512 inline unsigned bits_of_lanes(Mask32 mask) { return mask; }
GRADCOMP_AVX512 inline bool none_of(Mask32 mask) { return mask == 0; }
GRADCOMP_AVX512 inline Mask32 cmpgt_epi32(Vector a, Vector b) {
  return _mm512_cmpgt_epi32_mask(a, b);
}
GRADCOMP_AVX512 inline Mask32 cmpge_epi32(Vector a, Vector b) {
  return _mm512_cmpge_epi32_mask(a, b);
}
GRADCOMP_AVX512 inline Mask32 cmpge_ps(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}
GRADCOMP_AVX512 inline Vector blend_epi32(Mask32 mask, Vector a, Vector b) {
  return _mm512_mask_mov_epi32(a, mask, b);
}
GRADCOMP_AVX512 inline Vector blend_odd_epi32(Vector a, Vector b) {
  return _mm512_mask_mov_epi32(a, 0xAAAA, b);
}
GRADCOMP_AVX512 inline Vector keep_epi32(Mask32 mask, Vector a) {
  return _mm512_maskz_mov_epi32(mask, a);
}
GRADCOMP_AVX512 inline Vector increment_epi32(Mask32 mask, Vector a) {
  return _mm512_mask_add_epi32(a, mask, a, _mm512_set1_epi32(1));
}
GRADCOMP_AVX512 inline Vector negate_epi32(Mask32 mask, Vector a) {
  return _mm512_mask_sub_epi32(a, mask, Vector{}, a);
}
GRADCOMP_AVX512 inline Vector sub_epi32(Mask32 mask, Vector a, Vector b) {
  return _mm512_mask_sub_epi32(a, mask, a, b);
}

GRADCOMP_AVX512 inline std::uint32_t reduce_add_epu8(Vector a) {
  return static_cast<std::uint32_t>(_mm512_reduce_add_epi64(_mm512_sad_epu8(a, Vector{})));
}
GRADCOMP_AVX512 inline std::int64_t wide_sum(Vector a) {
  return _mm512_reduce_add_epi64(
      _mm512_add_epi64(_mm512_cvtepi32_epi64(low_half(a)), _mm512_cvtepi32_epi64(high_half(a))));
}
GRADCOMP_AVX512 inline std::int32_t reduce_add_epi32(Vector a) {
  return _mm512_reduce_add_epi32(a);
}
GRADCOMP_AVX512 inline std::uint32_t reduce_max_epu32(Vector a) {
  return _mm512_reduce_max_epu32(a);
}

}  // namespace avx512
}  // namespace gradcomp
