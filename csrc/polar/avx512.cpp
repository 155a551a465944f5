#if defined(__x86_64__)

#include <algorithm>

#include "kernels/polar.hpp"
#include "kernels/x86.hpp"
#include "polar/lattice.hpp"
#include "polar/quantize.hpp"

namespace gradcomp {
namespace {

GRADCOMP_AVX512 inline __m512i load_row(const std::int8_t* llr, std::size_t row) {
  return _mm512_loadu_si512(llr + kLanes * row);
}

GRADCOMP_AVX512 inline void store_row(std::int8_t* llr, std::size_t row, __m512i values) {
  _mm512_storeu_si512(llr + kLanes * row, values);
}

// Saturating sums are at least -128.
GRADCOMP_AVX512 inline __m512i limited(__m512i sum) {
  return _mm512_max_epi8(sum, _mm512_set1_epi8(-127));
}

GRADCOMP_AVX512 inline __m512i negated(__m512i llr, std::uint64_t where) {
  return _mm512_mask_sub_epi8(llr, where, _mm512_setzero_si512(), llr);
}

GRADCOMP_AVX512 inline __m512i sixteen_levels(const float* x, __m512 scale, __m512* squares) {
  const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x), scale);
  *squares = _mm512_add_ps(*squares, _mm512_mul_ps(scaled, scaled));
  // Values far below the range become the least integer, and NaN becomes 127.
  return _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(127.0f)));
}

constexpr std::size_t kAhead = 4096;  // bytes

GRADCOMP_AVX512 float quantize(const float* x, float scale, std::int8_t* llr, std::size_t n) {
  const __m512 factor = _mm512_set1_ps(scale);
  // The packs leave runs of four out of order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512 squares = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    // Hardware prefetching stops at the end of a page.
    for (std::size_t line = 0; line < 4; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(x + i) + kAhead + 64 * line, _MM_HINT_T0);
    }
    const __m512i a = sixteen_levels(x + i, factor, &squares);
    const __m512i b = sixteen_levels(x + i + 16, factor, &squares);
    const __m512i c = sixteen_levels(x + i + 32, factor, &squares);
    const __m512i d = sixteen_levels(x + i + 48, factor, &squares);
    const __m512i levels = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    store_row(llr + i, 0, limited(_mm512_permutexvar_epi32(order, levels)));
  }
  alignas(64) float partial[16];
  _mm512_store_ps(partial, squares);
  return finish_quantize(x + i, scale, llr + i, n - i, partial);
}

GRADCOMP_AVX512 void check(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  const __m512i zero = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i a = load_row(llr, i);
    const __m512i b = load_row(llr, count + i);
    const __m512i most = _mm512_max_epi8(a, b);
    store_row(out, i, _mm512_max_epi8(_mm512_min_epi8(a, b), _mm512_sub_epi8(zero, most)));
  }
}

GRADCOMP_AVX512 void add(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out,
                         std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i a = negated(load_row(llr, i), bits[i]);
    store_row(out, i, limited(_mm512_adds_epi8(load_row(llr, count + i), a)));
  }
}

GRADCOMP_AVX512 void add_frozen(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    store_row(out, i, limited(_mm512_adds_epi8(load_row(llr, i), load_row(llr, count + i))));
  }
}

GRADCOMP_AVX512 void decide(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bits[i] = _mm512_movepi8_mask(load_row(llr, i));
}

GRADCOMP_AVX512 void decide_repetition(const std::int8_t* llr, std::uint64_t* bits,
                                       std::size_t count) {
  __m512i low = _mm512_setzero_si512();
  __m512i high = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i row = load_row(llr, i);
    low = _mm512_add_epi16(low, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(row)));
    high = _mm512_add_epi16(high, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(row, 1)));
  }
  const std::uint64_t word =
      std::uint64_t{_mm512_movepi16_mask(high)} << 32 | _mm512_movepi16_mask(low);
  for (std::size_t i = 0; i < count; ++i) bits[i] = word;
}

GRADCOMP_AVX512 void decide_parity(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  __m512i least = _mm512_set1_epi8(127);
  __m512i place = _mm512_setzero_si512();
  std::uint64_t odd = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i row = load_row(llr, i);
    const __m512i magnitude = _mm512_abs_epi8(row);
    const __mmask64 less = _mm512_cmplt_epi8_mask(magnitude, least);
    least = _mm512_min_epi8(least, magnitude);
    place = _mm512_mask_mov_epi8(place, less, _mm512_set1_epi8(static_cast<char>(i)));
    bits[i] = _mm512_movepi8_mask(row);
    odd ^= bits[i];
  }
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] ^= _mm512_mask_cmpeq_epi8_mask(odd, place, _mm512_set1_epi8(static_cast<char>(i)));
  }
}

GRADCOMP_AVX512 void xor_words(std::uint64_t* a, const std::uint64_t* b, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm512_storeu_si512(a + i,
                        _mm512_xor_si512(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i)));
  }
  for (; i < count; ++i) a[i] ^= b[i];
}

GRADCOMP_AVX512 std::int32_t agreement(const std::int8_t* llr, const std::uint64_t* bits,
                                       std::size_t count) {
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i wide_ones = _mm512_set1_epi16(1);
  __m512i sums = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i pairs = _mm512_maddubs_epi16(ones, negated(load_row(llr, i), bits[i]));
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, wide_ones));
  }
  return _mm512_reduce_add_epi32(sums);
}

GRADCOMP_AVX512 void penalties(const std::int8_t* llr, const std::uint64_t* bits,
                               std::int32_t* sums, std::size_t count) {
  const __m512i zero = _mm512_setzero_si512();
  __m512i totals[4];
  for (std::size_t k = 0; k < 4; ++k) totals[k] = _mm512_loadu_si512(sums + 16 * k);
  std::size_t i = 0;
  while (i < count) {
    __m512i low = zero;
    __m512i high = zero;
    // Number of rows whose sums in 16 bits do not overflow.
    for (const std::size_t stop = std::min(count, i + 256); i < stop; ++i) {
      const __m512i most = _mm512_max_epi8(negated(load_row(llr, i), ~bits[i]), zero);
      low = _mm512_add_epi16(low, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(most)));
      high = _mm512_add_epi16(high, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(most, 1)));
    }
    const __m512i sixteens[2] = {low, high};
    for (std::size_t k = 0; k < 2; ++k) {
      totals[2 * k] = _mm512_add_epi32(totals[2 * k],
                                       _mm512_cvtepu16_epi32(_mm512_castsi512_si256(sixteens[k])));
      totals[2 * k + 1] = _mm512_add_epi32(
          totals[2 * k + 1], _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(sixteens[k], 1)));
    }
  }
  for (std::size_t k = 0; k < 4; ++k) _mm512_storeu_si512(sums + 16 * k, totals[k]);
}

GRADCOMP_AVX512 void move_llr(const std::uint8_t* from, std::int8_t* llr, std::size_t count) {
  const __m512i order = _mm512_loadu_si512(from);  // only the last 4 bits count
  for (std::size_t i = 0; i < count; ++i) {
    store_row(llr, i, _mm512_shuffle_epi8(load_row(llr, i), order));
  }
}

GRADCOMP_AVX512 void move_bits(const std::uint8_t* from, std::uint64_t* bits, std::size_t count) {
  const __m512i order = _mm512_loadu_si512(from);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = _mm512_movepi8_mask(_mm512_shuffle_epi8(_mm512_movm_epi8(bits[i]), order));
  }
}

GRADCOMP_AVX512 inline __m512i sixteen_places(const float* x, __m512 scale, __m512i* largest) {
  const __m512i bits = _mm512_loadu_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  *largest = _mm512_max_epu32(*largest, magnitude);
  const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), scale);
  const __m512i place = _mm512_cvttps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(kLatticeTop)));
  return _mm512_xor_si512(place, _mm512_srai_epi32(bits, 31));
}

// Index of lattice_llr for each place.
GRADCOMP_AVX512 inline __m512i folded(__m512i places) {
  const __m512i magnitude = _mm512_xor_si512(places, _mm512_srai_epi16(places, 15));
  const __m512i last =
      _mm512_or_si512(_mm512_and_si512(magnitude, _mm512_set1_epi16(31)), _mm512_set1_epi16(32));
  return _mm512_min_epu16(magnitude, last);
}

GRADCOMP_AVX512 std::uint32_t lattice_places(const float* x, const std::uint64_t* mask, float scale,
                                             const LatticeRule& rule, std::int16_t* places,
                                             std::int8_t* llr, std::size_t n) {
  const __m512 factor = _mm512_set1_ps(scale);
  // The packs leave runs of eight bytes out of order.
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  __m512i table[4];
  for (int k = 0; k < 4; ++k) {
    table[k] = _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(rule.llr + 16 * k)));
  }
  __m512i largest = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    // Hardware prefetching stops at the end of a page.
    for (std::size_t line = 0; line < 4; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(x + i) + kAhead + 64 * line, _MM_HINT_T0);
    }
    const __m512i a = sixteen_places(x + i, factor, &largest);
    const __m512i b = sixteen_places(x + i + 16, factor, &largest);
    const __m512i c = sixteen_places(x + i + 32, factor, &largest);
    const __m512i d = sixteen_places(x + i + 48, factor, &largest);
    const __m512i low = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a, b));
    const __m512i high = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(c, d));
    _mm512_storeu_si512(places + i, low);
    _mm512_storeu_si512(places + i + 32, high);
    const __m512i at =
        _mm512_permutexvar_epi64(order, _mm512_packus_epi16(folded(low), folded(high)));
    const __mmask64 odd = _mm512_test_epi8_mask(at, _mm512_set1_epi8(16));
    const __mmask64 upper = _mm512_test_epi8_mask(at, _mm512_set1_epi8(32));
    const __m512i first =
        _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table[0], at), odd, table[1], at);
    const __m512i second =
        _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table[2], at), odd, table[3], at);
    const std::uint64_t negative =
        mask[i / kLanes] ^
        (std::uint64_t{_mm512_movepi16_mask(high)} << 32 | _mm512_movepi16_mask(low));
    store_row(llr + i, 0, negated(_mm512_mask_mov_epi8(first, upper, second), negative));
  }
  return finish_places(x + i, mask + i / kLanes, scale, rule, places + i, llr + i, n - i,
                       _mm512_reduce_max_epu32(largest));
}

// Number of elements whose sums in 32 bits do not overflow.
constexpr std::size_t kLatticeRun = 2048;

GRADCOMP_AVX512 inline std::int64_t wide_sum(__m512i sums) {
  return _mm512_reduce_add_epi64(
      _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums)),
                       _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sums, 1))));
}

GRADCOMP_AVX512 LatticeSums lattice_indices(const std::int16_t* places, const std::uint64_t* bits,
                                            const LatticeRule& rule, std::uint8_t* indices,
                                            std::size_t n) {
  const __m512i same = _mm512_set1_epi16(rule.same);
  const __m512i others = _mm512_set1_epi16(rule.other);
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i minus_one = _mm512_set1_epi16(-1);
  std::int64_t product = 0;
  std::int64_t energy = 0;
  std::size_t i = 0;
  while (i + kLanes <= n) {
    __m512i products = _mm512_setzero_si512();
    __m512i energies = _mm512_setzero_si512();
    for (const std::size_t stop = i + kLatticeRun; i < stop && i + kLanes <= n; i += kLanes) {
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i place = _mm512_loadu_si512(places + i + 32 * half);
        const __mmask32 negative = _mm512_movepi16_mask(place);
        const __m512i magnitude = _mm512_xor_si512(place, _mm512_srai_epi16(place, 15));
        const __mmask32 other = static_cast<__mmask32>(bits[i / kLanes] >> 32 * half) ^ negative;
        const __m512i pairs = _mm512_srai_epi16(
            _mm512_add_epi16(magnitude, _mm512_mask_mov_epi16(same, other, others)), 5);
        const __m512i twice = _mm512_add_epi16(_mm512_slli_epi16(pairs, 2),
                                               _mm512_mask_mov_epi16(one, other, minus_one));
        const __m512i doubled = _mm512_slli_epi16(pairs, 1);
        const __m512i index = _mm512_max_epi16(_mm512_mask_sub_epi16(doubled, other, doubled, one),
                                               _mm512_setzero_si512());
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + i + 32 * half),
                            _mm512_cvtepi16_epi8(index));
        const __m512i centre = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 1), one);
        products = _mm512_add_epi32(products, _mm512_madd_epi16(centre, twice));
        energies = _mm512_add_epi32(energies, _mm512_madd_epi16(twice, twice));
      }
    }
    product += wide_sum(products);
    energy += wide_sum(energies);
  }
  const LatticeSums rest = finish_indices(places + i, bits + i / kLanes, rule, indices + i, n - i);
  return {product + rest.product, energy + rest.energy};
}

GRADCOMP_AVX512 void lattice_points(const std::uint8_t* indices, const std::uint64_t* bits,
                                    float scale, float* y, std::size_t n) {
  const __m512 factor = _mm512_set1_ps(scale);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t part = 0; part < kLanes; part += 16) {
      const __m512i index = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(indices + i + part)));
      const __m512 point =
          _mm512_mul_ps(factor, _mm512_add_ps(_mm512_cvtepi32_ps(index), _mm512_set1_ps(0.5f)));
      const __m512i flipped =
          _mm512_xor_si512(_mm512_castps_si512(point), _mm512_slli_epi32(index, 31));
      const auto set = static_cast<__mmask16>(bits[i / kLanes] >> part);
      _mm512_storeu_si512(y + i + part, _mm512_mask_xor_epi32(flipped, set, flipped, sign));
    }
  }
  finish_points(indices + i, bits + i / kLanes, scale, y + i, n - i);
}

}  // namespace

const PolarKernels kAvx512PolarKernels = {
    quantize,       check,           add,           add_frozen, decide,   decide_repetition,
    decide_parity,  xor_words,       agreement,     penalties,  move_llr, move_bits,
    lattice_places, lattice_indices, lattice_points};

}  // namespace gradcomp

#endif
