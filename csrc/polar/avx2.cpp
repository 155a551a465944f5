#if defined(__x86_64__)

#include "kernels/x86.hpp"
#include "polar/kernels.hpp"
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
  // What is far below becomes the least integer, and NaN 127.
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
  // Saturation keeps signs; the permutation orders the quarters that packs interleaves.
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

}  // namespace

const PolarKernels kAvx2PolarKernels = {quantize,      check,     add,
                                        add_frozen,    decide,    decide_repetition,
                                        decide_parity, xor_words, agreement};

}  // namespace gradcomp

#endif
