#if defined(__x86_64__)

#include "kernels/x86.hpp"
#include "polar/kernels.hpp"
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
  // What is far below becomes the least integer, and NaN 127.
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

}  // namespace

const PolarKernels kAvx512PolarKernels = {quantize,      check,     add,
                                          add_frozen,    decide,    decide_repetition,
                                          decide_parity, xor_words, agreement};

}  // namespace gradcomp

#endif
