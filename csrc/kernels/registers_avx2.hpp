// Registers of AVX2. A mask is a register too: -1 where it is set, else 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/x86.hpp"

namespace gradcomp {
namespace avx2 {

#define GRADCOMP_LEVEL GRADCOMP_AVX2
#define GRADCOMP_MM(op) _mm256_##op

using Vector = __m256i;
using Half = __m128i;
using Floats = __m256;
using Bits = std::uint32_t;  // one for each byte of a register
using Mask8 = Vector;
using Mask16 = Vector;
using Mask32 = Vector;

#include "kernels/registers.hpp"

template <typename Element>
GRADCOMP_AVX2 inline Vector set_epi32(Element at) {
  return _mm256_set_epi32(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0));
}
template <typename Element>
GRADCOMP_AVX2 inline Vector set_epi64(Element at) {
  return _mm256_set_epi64x(at(3), at(2), at(1), at(0));
}
GRADCOMP_AVX2 inline Half low_half(Vector a) { return _mm256_castsi256_si128(a); }
GRADCOMP_AVX2 inline Half high_half(Vector a) { return _mm256_extracti128_si256(a, 1); }
GRADCOMP_AVX2 inline Vector load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
GRADCOMP_AVX2 inline void store_vector(void* to, Vector a) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), a);
}
GRADCOMP_AVX2 inline Half load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
GRADCOMP_AVX2 inline void store_half(void* to, Half a) {
  _mm_storeu_si128(static_cast<__m128i*>(to), a);
}
GRADCOMP_AVX2 inline __m128i load_quarter(const void* from) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(from));
}

GRADCOMP_AVX2 inline Vector order_epi64(Vector packed) {
  return _mm256_permute4x64_epi64(packed, 0b11'01'10'00);
}
GRADCOMP_AVX2 inline Vector order_epi32(Vector packed) {
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

GRADCOMP_AVX2 inline Bits movemask_epi8(Vector a) {
  return static_cast<Bits>(_mm256_movemask_epi8(a));
}
GRADCOMP_AVX2 inline Bits bits_of(Mask8 mask) { return movemask_epi8(mask); }
GRADCOMP_AVX2 inline Mask8 to_mask(Bits bits) {
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(bits)),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i selected =
      _mm256_set1_epi64x(static_cast<long long>(std::uint64_t{0x8040201008040201}));
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, selected), selected);
}
GRADCOMP_AVX2 inline Vector movm_epi8(Mask8 mask) { return mask; }
GRADCOMP_AVX2 inline Mask8 cmpgt_epi8(Vector a, Vector b) { return _mm256_cmpgt_epi8(a, b); }
GRADCOMP_AVX2 inline Mask8 cmpeq_epi8(Vector a, Vector b) { return _mm256_cmpeq_epi8(a, b); }
GRADCOMP_AVX2 inline Vector blend_epi8(Mask8 mask, Vector a, Vector b) {
  return _mm256_blendv_epi8(a, b, mask);
}
GRADCOMP_AVX2 inline Vector negate_epi8(Mask8 mask, Vector a) {
  return _mm256_sub_epi8(_mm256_xor_si256(a, mask), mask);
}
GRADCOMP_AVX2 inline Mask8 test_epi8(Vector a, Vector b) {
  return _mm256_xor_si256(_mm256_cmpeq_epi8(a & b, Vector{}), set1_epi8(-1));
}
GRADCOMP_AVX2 inline Vector increment_epi8(Mask8 mask, Vector a) {
  return _mm256_sub_epi8(a, mask);
}

GRADCOMP_AVX2 inline Mask16 to_mask16(std::uint64_t bits) {
  const __m256i lane = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                         8192, 16384, static_cast<short>(0x8000));
  return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(static_cast<short>(bits)), lane),
                            lane);
}
GRADCOMP_AVX2 inline Mask16 signs_epi16(Vector a) { return _mm256_srai_epi16(a, 15); }
GRADCOMP_AVX2 inline Mask8 signs_epi16(Vector low, Vector high) {
  return order_epi64(_mm256_packs_epi16(_mm256_srai_epi16(low, 15), _mm256_srai_epi16(high, 15)));
}
GRADCOMP_AVX2 inline Vector blend_epi16(Mask16 mask, Vector a, Vector b) {
  return _mm256_blendv_epi8(a, b, mask);
}
GRADCOMP_AVX2 inline Vector decrement_epi16(Mask16 mask, Vector a) {
  return _mm256_add_epi16(a, mask);
}
GRADCOMP_AVX2 inline Vector sign_of(Mask16 mask) {
  return _mm256_or_si256(mask, _mm256_set1_epi16(1));
}

GRADCOMP_AVX2 inline unsigned bits_of_lanes(Mask32 mask) {
  return static_cast<unsigned>(_mm256_movemask_ps(to_floats(mask)));
}
GRADCOMP_AVX2 inline bool none_of(Mask32 mask) { return _mm256_testz_si256(mask, mask) != 0; }
GRADCOMP_AVX2 inline Mask32 cmpgt_epi32(Vector a, Vector b) { return _mm256_cmpgt_epi32(a, b); }
GRADCOMP_AVX2 inline Mask32 cmpge_epi32(Vector a, Vector b) {
  return _mm256_cmpgt_epi32(a, _mm256_sub_epi32(b, _mm256_set1_epi32(1)));
}
GRADCOMP_AVX2 inline Mask32 cmpge_ps(Floats a, Floats b) {
  return from_floats(_mm256_cmp_ps(a, b, _CMP_NLT_UQ));
}
GRADCOMP_AVX2 inline Vector blend_epi32(Mask32 mask, Vector a, Vector b) {
  return _mm256_blendv_epi8(a, b, mask);
}
GRADCOMP_AVX2 inline Vector blend_odd_epi32(Vector a, Vector b) {
  return _mm256_blend_epi32(a, b, 0b1010'1010);
}
GRADCOMP_AVX2 inline Vector keep_epi32(Mask32 mask, Vector a) { return mask & a; }
GRADCOMP_AVX2 inline Vector increment_epi32(Mask32 mask, Vector a) {
  return _mm256_sub_epi32(a, mask);
}
GRADCOMP_AVX2 inline Vector negate_epi32(Mask32 mask, Vector a) {
  return _mm256_sub_epi32(a ^ mask, mask);
}
GRADCOMP_AVX2 inline Vector sub_epi32(Mask32 mask, Vector a, Vector b) {
  return _mm256_sub_epi32(a, mask & b);
}

GRADCOMP_AVX2 inline std::uint32_t reduce_add_epu8(Vector a) {
  const __m256i sums = _mm256_sad_epu8(a, Vector{});
  const __m128i both = _mm_add_epi64(low_half(sums), high_half(sums));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(both) + _mm_extract_epi32(both, 2));
}
GRADCOMP_AVX2 inline std::int64_t wide_sum(Vector a) {
  alignas(32) std::int32_t parts[kFloats];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), a);
  std::int64_t sum = 0;
  for (const std::int32_t part : parts) sum += part;
  return sum;
}
GRADCOMP_AVX2 inline std::int32_t reduce_add_epi32(Vector a) {
  return static_cast<std::int32_t>(wide_sum(a));
}
GRADCOMP_AVX2 inline std::uint32_t reduce_max_epu32(Vector a) {
  const __m128i four = _mm_max_epu32(low_half(a), high_half(a));
  const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_epi64(two, 32))));
}

}  // namespace avx2
}  // namespace gradcomp
