#if defined(__x86_64__)

#include <algorithm>

#include "kernels/polar.hpp"
#include "kernels/x86.hpp"
#include "polar/lattice.hpp"
#include "polar/quantize.hpp"

// A row is two vectors of 32 lanes.
namespace gradcomp {
namespace {

constexpr std::size_t kHalf = kLanes / 2;

GRADCOMP_AVX2 inline __m256i load_half(const std::int8_t* llr, std::size_t half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(llr + kHalf * half));
}

GRADCOMP_AVX2 inline void store_half(std::int8_t* llr, std::size_t half, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(llr + kHalf * half), values);
}

// Saturating sums are at least -128.
GRADCOMP_AVX2 inline __m256i limited(__m256i sum) {
  return _mm256_max_epi8(sum, _mm256_set1_epi8(-127));
}

GRADCOMP_AVX2 inline std::uint32_t half_word(std::uint64_t word, std::size_t half) {
  return static_cast<std::uint32_t>(word >> (kHalf * half));
}

// -1 where the bit is set, else 0.
GRADCOMP_AVX2 inline __m256i spread(std::uint32_t bits) {
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(bits)),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i selected =
      _mm256_set1_epi64x(static_cast<long long>(std::uint64_t{0x8040201008040201}));
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, selected), selected);
}

GRADCOMP_AVX2 inline __m256i negated(__m256i llr, std::uint32_t where) {
  const __m256i mask = spread(where);
  return _mm256_sub_epi8(_mm256_xor_si256(llr, mask), mask);
}

GRADCOMP_AVX2 inline std::uint64_t sign_bits(__m256i low, __m256i high) {
  return std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32 |
         static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
}

GRADCOMP_AVX2 inline __m256i eight_levels(const float* x, __m256 scale, __m256* squares) {
  const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x), scale);
  *squares = _mm256_add_ps(*squares, _mm256_mul_ps(scaled, scaled));
  // Values far below the range become the least integer, and NaN becomes 127.
  return _mm256_cvtps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(127.0f)));
}

GRADCOMP_AVX2 float quantize(const float* x, float scale, std::int8_t* llr, std::size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  // The packs leave runs of four out of order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  std::size_t i = 0;
  for (; i + kHalf <= n; i += kHalf) {
    const __m256i a = eight_levels(x + i, factor, &squares[0]);
    const __m256i b = eight_levels(x + i + 8, factor, &squares[1]);
    const __m256i c = eight_levels(x + i + 16, factor, &squares[0]);
    const __m256i d = eight_levels(x + i + 24, factor, &squares[1]);
    const __m256i levels = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    store_half(llr + i, 0, limited(_mm256_permutevar8x32_epi32(levels, order)));
  }
  alignas(32) float partial[16];
  _mm256_store_ps(partial, squares[0]);
  _mm256_store_ps(partial + 8, squares[1]);
  return finish_quantize(x + i, scale, llr + i, n - i, partial);
}

GRADCOMP_AVX2 void check(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  const __m256i zero = _mm256_setzero_si256();
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const __m256i a = load_half(llr, i);
    const __m256i b = load_half(llr, 2 * count + i);
    const __m256i most = _mm256_max_epi8(a, b);
    store_half(out, i, _mm256_max_epi8(_mm256_min_epi8(a, b), _mm256_sub_epi8(zero, most)));
  }
}

GRADCOMP_AVX2 void add(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out,
                       std::size_t count) {
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const __m256i a = negated(load_half(llr, i), half_word(bits[i / 2], i % 2));
    store_half(out, i, limited(_mm256_adds_epi8(load_half(llr, 2 * count + i), a)));
  }
}

GRADCOMP_AVX2 void add_frozen(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < 2 * count; ++i) {
    store_half(out, i, limited(_mm256_adds_epi8(load_half(llr, i), load_half(llr, 2 * count + i))));
  }
}

GRADCOMP_AVX2 void decide(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = sign_bits(load_half(llr, 2 * i), load_half(llr, 2 * i + 1));
  }
}

GRADCOMP_AVX2 void decide_repetition(const std::int8_t* llr, std::uint64_t* bits,
                                     std::size_t count) {
  __m256i sums[4] = {};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      const __m128i quarter =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(llr + kLanes * i + 16 * j));
      sums[j] = _mm256_add_epi16(sums[j], _mm256_cvtepi8_epi16(quarter));
    }
  }
  // Saturation keeps signs; the permutation restores the order of the quarters after the packs.
  const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi16(sums[0], sums[1]), 0xD8);
  const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi16(sums[2], sums[3]), 0xD8);
  const std::uint64_t word = sign_bits(low, high);
  for (std::size_t i = 0; i < count; ++i) bits[i] = word;
}

GRADCOMP_AVX2 void decide_parity(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  __m256i least[2] = {_mm256_set1_epi8(127), _mm256_set1_epi8(127)};
  __m256i place[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  std::uint64_t odd = 0;
  for (std::size_t i = 0; i < count; ++i) {
    __m256i row[2];
    for (std::size_t half = 0; half < 2; ++half) {
      row[half] = load_half(llr, 2 * i + half);
      const __m256i magnitude = _mm256_abs_epi8(row[half]);
      const __m256i less = _mm256_cmpgt_epi8(least[half], magnitude);
      least[half] = _mm256_min_epi8(least[half], magnitude);
      place[half] = _mm256_blendv_epi8(place[half], _mm256_set1_epi8(static_cast<char>(i)), less);
    }
    bits[i] = sign_bits(row[0], row[1]);
    odd ^= bits[i];
  }
  for (std::size_t i = 0; i < count; ++i) {
    const __m256i here = _mm256_set1_epi8(static_cast<char>(i));
    bits[i] ^=
        odd & sign_bits(_mm256_cmpeq_epi8(place[0], here), _mm256_cmpeq_epi8(place[1], here));
  }
}

GRADCOMP_AVX2 void xor_words(std::uint64_t* a, const std::uint64_t* b, std::size_t count) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto to = reinterpret_cast<__m256i*>(a + i);
    const auto from = reinterpret_cast<const __m256i*>(b + i);
    _mm256_storeu_si256(to, _mm256_xor_si256(_mm256_loadu_si256(to), _mm256_loadu_si256(from)));
  }
  for (; i < count; ++i) a[i] ^= b[i];
}

GRADCOMP_AVX2 std::int32_t agreement(const std::int8_t* llr, const std::uint64_t* bits,
                                     std::size_t count) {
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i wide_ones = _mm256_set1_epi16(1);
  __m256i sums = _mm256_setzero_si256();
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const __m256i signed_llr = negated(load_half(llr, i), half_word(bits[i / 2], i % 2));
    const __m256i pairs = _mm256_maddubs_epi16(ones, signed_llr);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, wide_ones));
  }
  std::int32_t parts[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sums);
  std::int32_t sum = 0;
  for (const std::int32_t part : parts) sum += part;
  return sum;
}

GRADCOMP_AVX2 void penalties(const std::int8_t* llr, const std::uint64_t* bits, std::int32_t* sums,
                             std::size_t count) {
  const __m256i zero = _mm256_setzero_si256();
  std::size_t i = 0;
  while (i < count) {
    __m256i words[4] = {zero, zero, zero, zero};
    // Number of rows whose sums in 16 bits do not overflow.
    for (const std::size_t stop = std::min(count, i + 256); i < stop; ++i) {
      for (std::size_t half = 0; half < 2; ++half) {
        const __m256i most =
            _mm256_max_epi8(negated(load_half(llr, 2 * i + half), half_word(~bits[i], half)), zero);
        const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(most));
        const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(most, 1));
        words[2 * half] = _mm256_add_epi16(words[2 * half], low);
        words[2 * half + 1] = _mm256_add_epi16(words[2 * half + 1], high);
      }
    }
    alignas(32) std::uint16_t found[kLanes];
    for (std::size_t k = 0; k < 4; ++k) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(found + 16 * k), words[k]);
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += found[lane];
  }
}

GRADCOMP_AVX2 void move_llr(const std::uint8_t* from, std::int8_t* llr, std::size_t count) {
  const auto* const lanes = reinterpret_cast<const std::int8_t*>(from);
  for (std::size_t half = 0; half < 2; ++half) {
    const __m256i order = load_half(lanes, half);  // only the last 4 bits count
    for (std::size_t i = half; i < 2 * count; i += 2) {
      store_half(llr, i, _mm256_shuffle_epi8(load_half(llr, i), order));
    }
  }
}

GRADCOMP_AVX2 void move_bits(const std::uint8_t* from, std::uint64_t* bits, std::size_t count) {
  const auto* const lanes = reinterpret_cast<const std::int8_t*>(from);
  const __m256i low = load_half(lanes, 0);
  const __m256i high = load_half(lanes, 1);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = sign_bits(_mm256_shuffle_epi8(spread(half_word(bits[i], 0)), low),
                        _mm256_shuffle_epi8(spread(half_word(bits[i], 1)), high));
  }
}

GRADCOMP_AVX2 inline __m256i eight_places(const float* x, __m256 scale, __m256i* largest) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  *largest = _mm256_max_epu32(*largest, magnitude);
  const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), scale);
  const __m256i place = _mm256_cvttps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(kLatticeTop)));
  return _mm256_xor_si256(place, _mm256_srai_epi32(bits, 31));
}

// Index of lattice_llr for each place.
GRADCOMP_AVX2 inline __m256i folded(__m256i places) {
  const __m256i magnitude = _mm256_xor_si256(places, _mm256_srai_epi16(places, 15));
  const __m256i last =
      _mm256_or_si256(_mm256_and_si256(magnitude, _mm256_set1_epi16(31)), _mm256_set1_epi16(32));
  return _mm256_min_epu16(magnitude, last);
}

GRADCOMP_AVX2 std::uint32_t lattice_places(const float* x, const std::uint64_t* mask, float scale,
                                           const LatticeRule& rule, std::int16_t* places,
                                           std::int8_t* llr, std::size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  __m256i table[4];
  for (int k = 0; k < 4; ++k) {
    table[k] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(rule.llr + 16 * k)));
  }
  __m256i largest = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kHalf <= n; i += kHalf) {
    const __m256i a = eight_places(x + i, factor, &largest);
    const __m256i b = eight_places(x + i + 8, factor, &largest);
    const __m256i c = eight_places(x + i + 16, factor, &largest);
    const __m256i d = eight_places(x + i + 24, factor, &largest);
    // The packs leave runs of eight bytes out of order.
    const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(c, d), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + i), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + i + 16), high);
    const __m256i at =
        _mm256_permute4x64_epi64(_mm256_packus_epi16(folded(low), folded(high)), 0xD8);
    const __m256i odd = _mm256_slli_epi16(at, 3);  // bit 4 becomes the sign
    const __m256i first = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[0], at),
                                             _mm256_shuffle_epi8(table[1], at), odd);
    const __m256i second = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[2], at),
                                              _mm256_shuffle_epi8(table[3], at), odd);
    const __m256i ratio = _mm256_blendv_epi8(first, second, _mm256_slli_epi16(at, 2));
    const __m256i negative = _mm256_permute4x64_epi64(
        _mm256_packs_epi16(_mm256_srai_epi16(low, 15), _mm256_srai_epi16(high, 15)), 0xD8);
    const __m256i flipped =
        _mm256_xor_si256(negative, spread(half_word(mask[i / kLanes], i / kHalf % 2)));
    store_half(llr + i, 0, _mm256_sub_epi8(_mm256_xor_si256(ratio, flipped), flipped));
  }
  alignas(32) std::uint32_t most[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(most), largest);
  // The rest may begin within a word.
  const std::uint64_t word = i < n ? mask[i / kLanes] >> (i % kLanes) : 0;
  return finish_places(x + i, &word, scale, rule, places + i, llr + i, n - i,
                       *std::max_element(most, most + 8));
}

// Number of elements whose sums in 32 bits do not overflow.
constexpr std::size_t kLatticeRun = 2048;

GRADCOMP_AVX2 inline std::int64_t wide_sum(__m256i sums) {
  alignas(32) std::int32_t parts[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sums);
  std::int64_t sum = 0;
  for (const std::int32_t part : parts) sum += part;
  return sum;
}

GRADCOMP_AVX2 LatticeSums lattice_indices(const std::int16_t* places, const std::uint64_t* bits,
                                          const LatticeRule& rule, std::uint8_t* indices,
                                          std::size_t n) {
  const __m256i same = _mm256_set1_epi16(rule.same);
  const __m256i others = _mm256_set1_epi16(rule.other);
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i lane = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                         8192, 16384, static_cast<short>(0x8000));
  std::int64_t product = 0;
  std::int64_t energy = 0;
  std::size_t i = 0;
  while (i + kLanes <= n) {
    __m256i products = _mm256_setzero_si256();
    __m256i energies = _mm256_setzero_si256();
    for (const std::size_t stop = i + kLatticeRun; i < stop && i + kLanes <= n; i += kLanes) {
      __m256i index[4];
      for (std::size_t part = 0; part < 4; ++part) {
        const __m256i place =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + i + 16 * part));
        const __m256i negative = _mm256_srai_epi16(place, 15);
        const __m256i magnitude = _mm256_xor_si256(place, negative);
        const __m256i word = _mm256_set1_epi16(static_cast<short>(bits[i / kLanes] >> 16 * part));
        const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(word, lane), lane);
        const __m256i other = _mm256_xor_si256(set, negative);
        const __m256i pairs = _mm256_srai_epi16(
            _mm256_add_epi16(magnitude, _mm256_blendv_epi8(same, others, other)), 5);
        const __m256i twice =
            _mm256_add_epi16(_mm256_slli_epi16(pairs, 2), _mm256_or_si256(other, one));
        index[part] = _mm256_max_epi16(_mm256_add_epi16(_mm256_slli_epi16(pairs, 1), other),
                                       _mm256_setzero_si256());
        const __m256i centre = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 1), one);
        products = _mm256_add_epi32(products, _mm256_madd_epi16(centre, twice));
        energies = _mm256_add_epi32(energies, _mm256_madd_epi16(twice, twice));
      }
      for (std::size_t half = 0; half < 2; ++half) {
        const __m256i packed = _mm256_packus_epi16(index[2 * half], index[2 * half + 1]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + i + kHalf * half),
                            _mm256_permute4x64_epi64(packed, 0xD8));
      }
    }
    product += wide_sum(products);
    energy += wide_sum(energies);
  }
  const LatticeSums rest = finish_indices(places + i, bits + i / kLanes, rule, indices + i, n - i);
  return {product + rest.product, energy + rest.energy};
}

GRADCOMP_AVX2 void lattice_points(const std::uint8_t* indices, const std::uint64_t* bits,
                                  float scale, float* y, std::size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i index =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(indices + i)));
    const __m256 point =
        _mm256_mul_ps(factor, _mm256_add_ps(_mm256_cvtepi32_ps(index), _mm256_set1_ps(0.5f)));
    const auto word = static_cast<int>(bits[i / kLanes] >> (i % kLanes) & 0xFF);
    const __m256i set = _mm256_sllv_epi32(_mm256_set1_epi32(word), to_sign);
    const __m256i negative =
        _mm256_and_si256(_mm256_xor_si256(set, _mm256_slli_epi32(index, 31)), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i),
                        _mm256_xor_si256(_mm256_castps_si256(point), negative));
  }
  // The rest begins within a word.
  for (; i < n; ++i) {
    const std::uint64_t word = bits[i / kLanes] >> (i % kLanes);
    finish_points(indices + i, &word, scale, y + i, 1);
  }
}

}  // namespace

const PolarKernels kAvx2PolarKernels = {
    quantize,       check,           add,           add_frozen, decide,   decide_repetition,
    decide_parity,  xor_words,       agreement,     penalties,  move_llr, move_bits,
    lattice_places, lattice_indices, lattice_points};

}  // namespace gradcomp

#endif
