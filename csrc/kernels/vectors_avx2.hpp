// Vectors of AVX2, for loops that the levels share (*_loops.hpp). vectors_avx512.hpp has the same
// names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"
#include "kernels/x86.hpp"

#define GRADCOMP_LEVEL GRADCOMP_AVX2
#define GRADCOMP_WIDTH 8

namespace gradcomp {
namespace {

#include "kernels/vectors.hpp"

// ---------------------------------------------------------------- numbers

GRADCOMP_AVX2 inline Floats broadcast(float x) { return _mm256_set1_ps(x); }
GRADCOMP_AVX2 inline Words broadcast(std::uint32_t x) { return Words{} + x; }
// The second operand where one is NaN.
GRADCOMP_AVX2 inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
GRADCOMP_AVX2 inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
GRADCOMP_AVX2 inline Doubles min(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }
GRADCOMP_AVX2 inline Doubles max(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
// As signed numbers.
GRADCOMP_AVX2 inline Words min(Words a, Words b) {
  return Words(_mm256_min_epi32(__m256i(a), __m256i(b)));
}
GRADCOMP_AVX2 inline Words max(Words a, Words b) {
  return Words(_mm256_max_epi32(__m256i(a), __m256i(b)));
}
GRADCOMP_AVX2 inline std::uint32_t largest_lane(Words x) {
  std::uint32_t lanes[kWidth];
  store(lanes, x);
  std::uint32_t most = 0;
  for (std::uint32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}
GRADCOMP_AVX2 inline Doubles absolute(Doubles x) {
  return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
}
// For results that need not be exact: rounds once or twice.
GRADCOMP_AVX2 inline Floats multiply_add(Floats a, float b, float c) { return a * b + c; }

GRADCOMP_AVX2 inline Words nearest(Floats x) { return Words(_mm256_cvtps_epi32(x)); }
GRADCOMP_AVX2 inline Words truncate(Floats x) { return Words(_mm256_cvttps_epi32(x)); }
// Of signed numbers.
GRADCOMP_AVX2 inline Floats to_floats(Words x) { return _mm256_cvtepi32_ps(__m256i(x)); }
GRADCOMP_AVX2 inline Doubles widen(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
GRADCOMP_AVX2 inline Doubles widen_lower(Floats x) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}
GRADCOMP_AVX2 inline Doubles widen_upper(Floats x) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

// ---------------------------------------------------------------- masks

// Ones in all bits of a lane, or zeros.
using Mask = Words;

// Of signed numbers.
GRADCOMP_AVX2 inline Mask greater(Words a, Words b) {
  return Mask(_mm256_cmpgt_epi32(__m256i(a), __m256i(b)));
}
GRADCOMP_AVX2 inline Mask greater(Floats a, Floats b) {
  return Mask(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
GRADCOMP_AVX2 inline Mask within(Words x, std::uint32_t from, std::uint32_t end) {
  return greater(x, broadcast(from - 1)) & ~greater(x, broadcast(end - 1));
}
GRADCOMP_AVX2 inline Mask equal(Words a, Words b) {
  return Mask(_mm256_cmpeq_epi32(__m256i(a), __m256i(b)));
}
// Whether x has none of the bits.
GRADCOMP_AVX2 inline Mask lacks(Words x, Words bits) { return equal(x & bits, Words{}); }
GRADCOMP_AVX2 inline Mask sign_bit(Floats x) { return spread_sign(bits_of(x)); }
GRADCOMP_AVX2 inline Mask nonfinite(Floats x) {
  return greater(magnitude(x), broadcast(kInfBits - 1));
}

GRADCOMP_AVX2 inline unsigned lanes(Mask mask) {
  return static_cast<unsigned>(_mm256_movemask_ps(floats_of(mask)));
}
GRADCOMP_AVX2 inline bool any(Mask mask) { return lanes(mask) != 0; }
GRADCOMP_AVX2 inline Floats select(Mask mask, Floats set, Floats clear) {
  return _mm256_blendv_ps(clear, set, floats_of(mask));
}
GRADCOMP_AVX2 inline Words select(Mask mask, Words set, Words clear) {
  return Words(_mm256_blendv_epi8(__m256i(clear), __m256i(set), __m256i(mask)));
}
GRADCOMP_AVX2 inline Words add_one(Mask mask, Words x) { return x - mask; }
// The mask of the lanes with set bits.
GRADCOMP_AVX2 inline Mask load_mask(const std::uint8_t* bits) {
  const Words lane = {1, 2, 4, 8, 16, 32, 64, 128};
  return equal(lane & broadcast(std::uint32_t{*bits}), lane);
}
GRADCOMP_AVX2 inline void store_mask(std::uint8_t* bits, Mask mask) {
  *bits = static_cast<std::uint8_t>(lanes(mask));
}
// x, negated where word has a bit, from bit `first` on.
GRADCOMP_AVX2 inline Floats negate(Floats x, std::uint32_t word, unsigned first) {
  const Words shifts = Words{31, 30, 29, 28, 27, 26, 25, 24} - first;
  const Words bits = Words(_mm256_sllv_epi32(__m256i(broadcast(word)), __m256i(shifts)));
  return floats_of(bits_of(x) ^ (bits & ~kMagnitudeMask));
}
// x[0, kWidth) = 0 where the mask is set; v is what is there.
GRADCOMP_AVX2 inline void clear(float* x, Floats v, Mask mask) {
  store(x, floats_of(bits_of(v) & ~mask));
}

// ---------------------------------------------------------------- memory

GRADCOMP_AVX2 inline Words load_bytes(const std::uint8_t* x) {
  return Words(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
GRADCOMP_AVX2 inline __m128i load_u16(const std::uint8_t* x) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
}
GRADCOMP_AVX2 inline Words load_halves(const std::uint8_t* x) {
  return Words(_mm256_cvtepu16_epi32(load_u16(x)));
}
GRADCOMP_AVX2 inline Floats load_f16(const std::uint8_t* x) { return _mm256_cvtph_ps(load_u16(x)); }
GRADCOMP_AVX2 inline void store_f16(std::uint8_t* out, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// Vectors that are packed together. Packing works within 128-bit halves: what follows it restores
// the order.
constexpr std::size_t kPackedHalves = 2;
constexpr std::size_t kPackedBytes = 4;

// Numbers below 2^16, or 2^8.
GRADCOMP_AVX2 inline void store_halves(std::uint8_t* out, const Words (&x)[kPackedHalves]) {
  const __m256i packed = _mm256_packus_epi32(__m256i(x[0]), __m256i(x[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xD8));
}
GRADCOMP_AVX2 inline void store_bytes(std::uint8_t* out, const Words (&x)[kPackedBytes]) {
  const __m256i lower = _mm256_packus_epi32(__m256i(x[0]), __m256i(x[1]));
  const __m256i upper = _mm256_packus_epi32(__m256i(x[2]), __m256i(x[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(lower, upper), order));
}
GRADCOMP_AVX2 inline void store_bytes(std::uint8_t* out, Words x) {
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(__m256i(x)), _mm256_extracti128_si256(__m256i(x), 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(halves, halves));
}

// Past the caches.
GRADCOMP_AVX2 inline void stream(float* x, Floats v) { _mm256_stream_ps(x, v); }

// ---------------------------------------------------------------- lanes

// table[at % kWidth]
GRADCOMP_AVX2 inline Floats pick(Floats table, Words at) {
  return _mm256_permutevar8x32_ps(table, __m256i(at));
}
GRADCOMP_AVX2 inline Floats gather(const float* table, Words at) {
  return _mm256_i32gather_ps(table, __m256i(at), 4);
}
// Gathers as floats: a tenth faster than as integers between gathers of floats (Zen 4).
GRADCOMP_AVX2 inline Words gather(const std::uint32_t* table, Words at) {
  return bits_of(gather(reinterpret_cast<const float*>(table), at));
}

// A table of up to 16 numbers in registers.
struct Table16 {
  Floats lower, upper;

  GRADCOMP_AVX2 void load_from(const float* table, std::size_t n) {
    const Words lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const Words count = broadcast(static_cast<std::uint32_t>(n));
    lower = _mm256_maskload_ps(table, __m256i(greater(count, lane)));
    upper = n <= 8 ? lower : _mm256_maskload_ps(table + 8, __m256i(greater(count, lane + 8u)));
  }
  GRADCOMP_AVX2 Floats operator[](Words at) const {
    // Blending looks at the uppermost bit.
    return _mm256_blendv_ps(pick(lower, at), pick(upper, at), floats_of(at << 28));
  }
};

// Stage of hadamard() between the lanes: `other` has each lane's partner, `minus` a sign bit in the
// lanes that subtract.
GRADCOMP_AVX2 inline Floats lane_butterfly(Floats x, Floats other, Floats minus) {
  return other + _mm256_xor_ps(x, minus);
}
// Butterflies of the strides below kWidth.
GRADCOMP_AVX2 inline Floats lane_butterflies(Floats x) {
  x = lane_butterfly(x, _mm256_permute_ps(x, 0xB1), Floats{0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f});
  x = lane_butterfly(x, _mm256_permute_ps(x, 0x4E), Floats{0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f});
  return lane_butterfly(x, _mm256_permute2f128_ps(x, x, 0x01),
                        Floats{0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f});
}

// ---------------------------------------------------------------- Philox

constexpr std::size_t kPhiloxSets = 2;

GRADCOMP_AVX2 inline Longs count_from(std::uint64_t first) { return Longs{0, 1, 2, 3} + first; }
// Products of the lower halves.
GRADCOMP_AVX2 inline Longs multiply(Longs x, std::uint32_t factor) {
  return Longs(_mm256_mul_epu32(_mm256_set1_epi64x(factor), __m256i(x)));
}
// A shuffle, as shifts would compete for the multiplier's ports.
GRADCOMP_AVX2 inline Longs swap_halves(Longs x) {
  return Longs(_mm256_shuffle_epi32(__m256i(x), 0xB1));
}
GRADCOMP_AVX2 inline Longs exclusive_or(Longs a, Longs b, Longs c) { return a ^ (b ^ c); }
// Lower halves of a[0], b[0], c[0], d[0], a[1], ...
GRADCOMP_AVX2 inline void interleave(Longs a, Longs b, Longs c, Longs d, Words* out) {
  const __m256i ab = _mm256_blend_epi32(__m256i(a), __m256i(swap_halves(b)), 0xAA);
  const __m256i cd = _mm256_blend_epi32(__m256i(c), __m256i(swap_halves(d)), 0xAA);
  // Interleaving works within 128-bit halves: blocks 0 and 2, then 1 and 3.
  const __m256i blocks02 = _mm256_unpacklo_epi64(ab, cd);
  const __m256i blocks13 = _mm256_unpackhi_epi64(ab, cd);
  out[0] = Words(_mm256_permute2x128_si256(blocks02, blocks13, 0x20));
  out[1] = Words(_mm256_permute2x128_si256(blocks02, blocks13, 0x31));
}
GRADCOMP_AVX2 inline Words rotate_by_16(Words x) {
  const __m256i swap = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  return Words(_mm256_shuffle_epi8(__m256i(x), swap));
}

}  // namespace
}  // namespace gradcomp
