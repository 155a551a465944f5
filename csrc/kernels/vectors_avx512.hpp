// Vectors of AVX-512, for loops that the levels share (*_loops.hpp). vectors_avx2.hpp has the same
// names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"
#include "kernels/x86.hpp"

#define GRADCOMP_LEVEL GRADCOMP_AVX512
#define GRADCOMP_WIDTH 16

namespace gradcomp {
namespace {

#include "kernels/vectors.hpp"

// ---------------------------------------------------------------- numbers

GRADCOMP_AVX512 inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
GRADCOMP_AVX512 inline Words broadcast(std::uint32_t x) { return Words{} + x; }
// The second operand where one is NaN.
GRADCOMP_AVX512 inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
GRADCOMP_AVX512 inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
GRADCOMP_AVX512 inline Doubles min(Doubles a, Doubles b) { return _mm512_min_pd(a, b); }
GRADCOMP_AVX512 inline Doubles max(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
// As signed numbers.
GRADCOMP_AVX512 inline Words min(Words a, Words b) {
  return Words(_mm512_min_epi32(__m512i(a), __m512i(b)));
}
GRADCOMP_AVX512 inline Words max(Words a, Words b) {
  return Words(_mm512_max_epi32(__m512i(a), __m512i(b)));
}
GRADCOMP_AVX512 inline std::uint32_t largest_lane(Words x) {
  return _mm512_reduce_max_epu32(__m512i(x));
}
GRADCOMP_AVX512 inline Doubles absolute(Doubles x) { return _mm512_abs_pd(x); }
// For results that need not be exact: rounds once or twice.
GRADCOMP_AVX512 inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}

GRADCOMP_AVX512 inline Words nearest(Floats x) { return Words(_mm512_cvtps_epi32(x)); }
GRADCOMP_AVX512 inline Words truncate(Floats x) { return Words(_mm512_cvttps_epi32(x)); }
// Of signed numbers.
GRADCOMP_AVX512 inline Floats to_floats(Words x) { return _mm512_cvtepi32_ps(__m512i(x)); }
GRADCOMP_AVX512 inline Doubles widen(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
GRADCOMP_AVX512 inline Doubles widen_lower(Floats x) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
GRADCOMP_AVX512 inline Doubles widen_upper(Floats x) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

// ---------------------------------------------------------------- masks

using Mask = __mmask16;

// Of signed numbers.
GRADCOMP_AVX512 inline Mask greater(Words a, Words b) {
  return _mm512_cmpgt_epi32_mask(__m512i(a), __m512i(b));
}
GRADCOMP_AVX512 inline Mask greater(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
GRADCOMP_AVX512 inline Mask within(Words x, std::uint32_t from, std::uint32_t end) {
  const __m512i last = __m512i(broadcast(end));
  return _mm512_mask_cmplt_epi32_mask(greater(x, broadcast(from - 1)), __m512i(x), last);
}
GRADCOMP_AVX512 inline Mask equal(Words a, Words b) {
  return _mm512_cmpeq_epi32_mask(__m512i(a), __m512i(b));
}
// Whether x has none of the bits.
GRADCOMP_AVX512 inline Mask lacks(Words x, Words bits) {
  return _mm512_testn_epi32_mask(__m512i(x), __m512i(bits));
}
GRADCOMP_AVX512 inline Mask sign_bit(Floats x) { return _mm512_movepi32_mask(__m512i(x)); }
GRADCOMP_AVX512 inline Mask nonfinite(Floats x) {
  return greater(magnitude(x), broadcast(kInfBits - 1));
}

GRADCOMP_AVX512 inline bool any(Mask mask) { return mask != 0; }
GRADCOMP_AVX512 inline unsigned lanes(Mask mask) { return mask; }
GRADCOMP_AVX512 inline Floats select(Mask mask, Floats set, Floats clear) {
  return _mm512_mask_blend_ps(mask, clear, set);
}
GRADCOMP_AVX512 inline Words select(Mask mask, Words set, Words clear) {
  return Words(_mm512_mask_blend_epi32(mask, __m512i(clear), __m512i(set)));
}
GRADCOMP_AVX512 inline Words add_one(Mask mask, Words x) {
  return Words(_mm512_mask_add_epi32(__m512i(x), mask, __m512i(x), _mm512_set1_epi32(1)));
}
// The mask of the lanes with set bits.
GRADCOMP_AVX512 inline Mask load_mask(const std::uint8_t* bits) {
  return load<std::uint16_t>(bits);
}
GRADCOMP_AVX512 inline void store_mask(std::uint8_t* bits, Mask mask) {
  store(bits, static_cast<std::uint16_t>(mask));
}
// x, negated where word has a bit, from bit `first` on.
GRADCOMP_AVX512 inline Floats negate(Floats x, std::uint32_t word, unsigned first) {
  return _mm512_mask_xor_ps(x, static_cast<Mask>(word >> first), x, _mm512_set1_ps(-0.0f));
}
// x[0, kWidth) = 0 where the mask is set; the other parameter is what is there.
GRADCOMP_AVX512 inline void clear(float* x, Floats, Mask mask) {
  _mm512_mask_storeu_ps(x, mask, _mm512_setzero_ps());
}

// ---------------------------------------------------------------- memory

GRADCOMP_AVX512 inline Words load_bytes(const std::uint8_t* x) {
  return Words(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
GRADCOMP_AVX512 inline __m256i load_u16(const std::uint8_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
GRADCOMP_AVX512 inline Words load_halves(const std::uint8_t* x) {
  return Words(_mm512_cvtepu16_epi32(load_u16(x)));
}
GRADCOMP_AVX512 inline Floats load_f16(const std::uint8_t* x) {
  return _mm512_cvtph_ps(load_u16(x));
}
GRADCOMP_AVX512 inline void store_f16(std::uint8_t* out, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// Vectors that are stored together.
constexpr std::size_t kPackedHalves = 1;
constexpr std::size_t kPackedBytes = 1;

// Numbers below 2^16, or 2^8.
GRADCOMP_AVX512 inline void store_halves(std::uint8_t* out, const Words (&x)[kPackedHalves]) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(__m512i(x[0])));
}
GRADCOMP_AVX512 inline void store_bytes(std::uint8_t* out, Words x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(__m512i(x)));
}
GRADCOMP_AVX512 inline void store_bytes(std::uint8_t* out, const Words (&x)[kPackedBytes]) {
  store_bytes(out, x[0]);
}

// Past the caches.
GRADCOMP_AVX512 inline void stream(float* x, Floats v) { _mm512_stream_ps(x, v); }

// ---------------------------------------------------------------- lanes

// table[at % kWidth]
GRADCOMP_AVX512 inline Floats pick(Floats table, Words at) {
  return _mm512_permutexvar_ps(__m512i(at), table);
}
GRADCOMP_AVX512 inline Floats gather(const float* table, Words at) {
  return _mm512_i32gather_ps(__m512i(at), table, 4);
}

// A table of up to 16 numbers in a register.
struct Table16 {
  Floats values;

  GRADCOMP_AVX512 void load_from(const float* table, std::size_t n) {
    values = _mm512_maskz_loadu_ps(static_cast<Mask>((1u << n) - 1), table);
  }
  GRADCOMP_AVX512 Floats operator[](Words at) const { return pick(values, at); }
};

// Stage of hadamard() between the lanes: `other` has each lane's partner, `minus` the lanes that
// subtract. Multiplying by 1 or -1 is exact, so the fused operation rounds like an addition.
GRADCOMP_AVX512 inline Floats lane_butterfly(Floats x, Floats other, Mask minus) {
  return _mm512_fmadd_ps(x, select(minus, broadcast(-1.0f), broadcast(1.0f)), other);
}
// Butterflies of the strides below kWidth.
GRADCOMP_AVX512 inline Floats lane_butterflies(Floats x) {
  x = lane_butterfly(x, _mm512_permute_ps(x, 0xB1), 0xAAAA);
  x = lane_butterfly(x, _mm512_permute_ps(x, 0x4E), 0xCCCC);
  x = lane_butterfly(x, _mm512_shuffle_f32x4(x, x, 0xB1), 0xF0F0);
  return lane_butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4E), 0xFF00);
}

// ---------------------------------------------------------------- Philox

constexpr std::size_t kPhiloxSets = 4;

GRADCOMP_AVX512 inline Longs count_from(std::uint64_t first) {
  return Longs{0, 1, 2, 3, 4, 5, 6, 7} + first;
}
// Products of the lower halves.
GRADCOMP_AVX512 inline Longs multiply(Longs x, std::uint32_t factor) {
  return Longs(_mm512_mul_epu32(_mm512_set1_epi64(factor), __m512i(x)));
}
// A shuffle, as shifts would compete for the multiplier's port.
GRADCOMP_AVX512 inline Longs swap_halves(Longs x) {
  return Longs(_mm512_shuffle_epi32(__m512i(x), _MM_PERM_CDAB));
}
GRADCOMP_AVX512 inline Longs exclusive_or(Longs a, Longs b, Longs c) {
  return Longs(_mm512_ternarylogic_epi64(__m512i(a), __m512i(b), __m512i(c), 0x96));
}
// Lower halves of a[0], b[0], c[0], d[0], a[1], ...
GRADCOMP_AVX512 inline void interleave(Longs a, Longs b, Longs c, Longs d, Words* out) {
  const __m512i order0 = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i order1 = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  const __m512i ab = _mm512_mask_shuffle_epi32(__m512i(a), 0xAAAA, __m512i(b), _MM_PERM_CDAB);
  const __m512i cd = _mm512_mask_shuffle_epi32(__m512i(c), 0xAAAA, __m512i(d), _MM_PERM_CDAB);
  out[0] = Words(_mm512_permutex2var_epi64(ab, order0, cd));
  out[1] = Words(_mm512_permutex2var_epi64(ab, order1, cd));
}
GRADCOMP_AVX512 inline Words rotate_by_16(Words x) {
  return Words(_mm512_rol_epi32(__m512i(x), 16));
}

}  // namespace
}  // namespace gradcomp
