// Planes of bytes of float32 numbers with AVX2, for that level and for AVX-512.
#pragma once

#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/moves.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace planes {

constexpr std::size_t kStep = 32;  // elements
// A chunk is read between other work, so the processor does not know early which memory is next.
constexpr std::size_t kAhead = 1024;  // floats to prefetch

GRADCOMP_AVX2 inline __m256i load_32(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
GRADCOMP_AVX2 inline __m128i load_8(const void* from) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(from));
}
GRADCOMP_AVX2 inline void store_8(std::uint8_t* to, __m128i bytes) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
}

// The byte planes of one step, and the bits of its elements.
struct Step {
  __m256i planes[4];
  __m256i any;
  __m256i of_zeros;
};

GRADCOMP_AVX2 inline void split_step(const float* x, Step* step) {
  const __m256i exponents = _mm256_set1_epi32(static_cast<int>(0xFF000000u));
  const __m256i by_byte = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12));
  __m256i fours[4];  // of each plane four bytes, in each half
  for (std::size_t k = 0; k < 4; ++k) {
    const __m256i bits = load_32(x + 8 * k);
    const __m256i e = _mm256_and_si256(_mm256_slli_epi32(bits, 1), exponents);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 8), _mm256_set1_epi32(0x800000));
    const __m256i rest = _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFF)), sign);
    const __m256i all = _mm256_or_si256(e, rest);
    const __m256i is_zero = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
    step->any = _mm256_or_si256(step->any, all);
    step->of_zeros = _mm256_or_si256(step->of_zeros, _mm256_and_si256(rest, is_zero));
    fours[k] = _mm256_shuffle_epi8(all, by_byte);
  }
  const __m256i a = _mm256_unpacklo_epi32(fours[0], fours[1]);
  const __m256i b = _mm256_unpacklo_epi32(fours[2], fours[3]);
  const __m256i c = _mm256_unpackhi_epi32(fours[0], fours[1]);
  const __m256i d = _mm256_unpackhi_epi32(fours[2], fours[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  step->planes[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(a, b), order);
  step->planes[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(a, b), order);
  step->planes[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(c, d), order);
  step->planes[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(c, d), order);
}

GRADCOMP_AVX2 inline std::uint32_t any_lane(__m256i bits) {
  const __m128i four =
      _mm_or_si128(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  const __m128i two = _mm_or_si128(four, _mm_unpackhi_epi64(four, four));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(two) | _mm_extract_epi32(two, 1));
}

GRADCOMP_AVX2 inline PlaneBits split_planes(const float* x, std::uint8_t* exponent,
                                            std::uint8_t* upper, std::uint8_t* middle,
                                            std::uint8_t* lower, std::size_t n) {
  std::uint8_t* const to[4] = {exponent, upper, middle, lower};
  Step step;
  step.any = step.of_zeros = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    prefetch(x, i + kAhead, kStep);
    split_step(x + i, &step);
    for (std::size_t p = 0; p < 4; ++p) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[p] + i), step.planes[p]);
    }
  }
  if (i < n) {
    float last[kStep] = {};
    std::memcpy(last, x + i, sizeof(float) * (n - i));
    split_step(last, &step);
    for (std::size_t p = 0; p < 4; ++p) std::memcpy(to[p] + i, &step.planes[p], n - i);
  }
  return {any_lane(step.any), any_lane(step.of_zeros)};
}

// Bit i: whether byte i is not 0.
GRADCOMP_AVX2 inline std::uint32_t nonzero_bytes(__m256i bytes) {
  return ~static_cast<std::uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
}

GRADCOMP_AVX2 inline std::size_t compress_bytes(const std::uint8_t* keys, std::uint8_t* bytes,
                                                std::size_t n) {
  const Moves& move = moves();
  std::uint8_t* to = bytes;
  std::size_t i = 0;
  // Each store ends before the next bytes to read.
  for (; i + kStep <= n; i += kStep) {
    const std::uint32_t kept = nonzero_bytes(load_32(keys + i));
    for (unsigned part = 0; part < kStep; part += 8) {
      const unsigned mask = kept >> part & 0xFF;
      store_8(to, _mm_shuffle_epi8(load_8(bytes + i + part), load_8(move.compress + mask)));
      to += __builtin_popcount(mask);
    }
  }
  for (; i < n; ++i) {
    *to = bytes[i];
    to += keys[i] != 0;
  }
  return static_cast<std::size_t>(to - bytes);
}

GRADCOMP_AVX2 inline const std::uint8_t* expand_bytes(const std::uint8_t* keys,
                                                      const std::uint8_t* from,
                                                      const std::uint8_t* end, std::uint8_t* out,
                                                      std::size_t n) {
  const Moves& move = moves();
  std::size_t i = 0;
  for (; i + kStep <= n && static_cast<std::size_t>(end - from) >= kStep; i += kStep) {
    const std::uint32_t kept = nonzero_bytes(load_32(keys + i));
    for (unsigned part = 0; part < kStep; part += 8) {
      const unsigned mask = kept >> part & 0xFF;
      store_8(out + i + part, _mm_shuffle_epi8(load_8(from), load_8(move.expand + mask)));
      from += __builtin_popcount(mask);
    }
  }
  for (; i < n; ++i) out[i] = keys[i] != 0 ? *from++ : 0;
  return from;
}

}  // namespace planes
}  // namespace gradcomp
