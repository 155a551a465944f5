#if defined(__x86_64__)

#include "base/rng.hpp"
#include "kernels/dynamic8.hpp"
#include "kernels/fixed.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"
#include "kernels/planes_x86.hpp"
#include "kernels/sums.hpp"
#include "kernels/table.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

GRADCOMP_AVX2 inline __m256i load_u16x8(const std::uint8_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

GRADCOMP_AVX2 inline __m256 load_f16x8(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

GRADCOMP_AVX2 inline __m256 load_bf16x8(const std::uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(load_u16x8(p), 16));
}

GRADCOMP_AVX2 inline __m256i magnitude(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

// All ones where x is NaN or Inf.
GRADCOMP_AVX2 inline __m256i nonfinite(__m256 x) {
  return _mm256_cmpgt_epi32(magnitude(x), _mm256_set1_epi32(kInfBits - 1));
}

GRADCOMP_AVX2 inline void add_scaled(float* acc, __m256 weight, __m256 x) {
  _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), _mm256_mul_ps(weight, x)));
}

// Finite values that would round to Inf become +-65504.
GRADCOMP_AVX2 inline __m256 clamp_to_half(__m256 x) {
  const __m256i m = magnitude(x);
  const __m256i over = _mm256_andnot_si256(
      nonfinite(x), _mm256_cmpgt_epi32(m, _mm256_set1_epi32(kHalfOverflow - 1)));
  const __m256 limit =
      _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(65504.0f));
  return _mm256_blendv_ps(x, limit, _mm256_castsi256_ps(over));
}

GRADCOMP_AVX2 void f32_to_f16(const float* x, std::uint8_t* out, std::size_t n, bool saturate) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 v = _mm256_loadu_ps(x + i);
    if (saturate) v = clamp_to_half(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  kScalarKernels.f32_to_f16(x + i, out + 2 * i, n - i, saturate);
}

GRADCOMP_AVX2 void f16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, load_f16x8(in + 2 * i));
  kScalarKernels.f16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_AVX2 void f16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m256 w = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) add_scaled(acc + i, w, load_f16x8(in + 2 * i));
  kScalarKernels.f16_add(in + 2 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX2 inline __m256i bfloat_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude(x), _mm256_set1_epi32(kInfBits));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

GRADCOMP_AVX2 void f32_to_bf16(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i packed = _mm256_packus_epi32(bfloat_bits(_mm256_loadu_ps(x + i)),
                                               bfloat_bits(_mm256_loadu_ps(x + i + 8)));
    // packus works within 128-bit halves: restore the order of the four quarters.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                        _mm256_permute4x64_epi64(packed, 0xD8));
  }
  kScalarKernels.f32_to_bf16(x + i, out + 2 * i, n - i);
}

GRADCOMP_AVX2 void bf16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, load_bf16x8(in + 2 * i));
  kScalarKernels.bf16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_AVX2 void bf16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m256 w = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) add_scaled(acc + i, w, load_bf16x8(in + 2 * i));
  kScalarKernels.bf16_add(in + 2 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX2 void f32_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m256 w = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i));
    add_scaled(acc + i, w, _mm256_castsi256_ps(bits));
  }
  kScalarKernels.f32_add(in + 4 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX2 bool compensate(float* residual, const float* grad, float beta, float gamma,
                              std::size_t n) {
  const __m256 b = _mm256_set1_ps(beta);
  const __m256 g = _mm256_set1_ps(gamma);
  __m256i bad = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 corrected = _mm256_add_ps(_mm256_mul_ps(b, _mm256_loadu_ps(residual + i)),
                                           _mm256_mul_ps(g, _mm256_loadu_ps(grad + i)));
    _mm256_storeu_ps(residual + i, corrected);
    bad = _mm256_or_si256(bad, nonfinite(corrected));
  }
  const bool tail_finite = kScalarKernels.compensate(residual + i, grad + i, beta, gamma, n - i);
  return tail_finite && _mm256_testz_si256(bad, bad) != 0;
}

GRADCOMP_AVX2 bool correct_momentum(float* velocity, float* momentum, const float* grad,
                                    float factor, float scale, bool nesterov, std::size_t n) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 s = _mm256_set1_ps(scale);
  __m256i bad = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(s, _mm256_loadu_ps(grad + i));
    __m256 m = _mm256_loadu_ps(momentum + i);
    __m256 step;
    if (nesterov) {
      m = _mm256_mul_ps(f, _mm256_add_ps(m, scaled));
      step = _mm256_add_ps(m, scaled);
    } else {
      m = _mm256_add_ps(_mm256_mul_ps(f, m), scaled);
      step = m;
    }
    _mm256_storeu_ps(momentum + i, m);
    const __m256 sum = _mm256_add_ps(_mm256_loadu_ps(velocity + i), step);
    _mm256_storeu_ps(velocity + i, sum);
    bad = _mm256_or_si256(bad, nonfinite(sum));
  }
  const bool tail_finite = kScalarKernels.correct_momentum(velocity + i, momentum + i, grad + i,
                                                           factor, scale, nesterov, n - i);
  return tail_finite && _mm256_testz_si256(bad, bad) != 0;
}

GRADCOMP_AVX2 void zero(float* y, std::size_t n) {
  if (n < kUncachedFrom) return kScalarKernels.zero(y, n);
  std::size_t i = until_line(y, n);
  kScalarKernels.zero(y, i);
  for (; i + 16 <= n; i += 16) {
    _mm256_stream_ps(y + i, _mm256_setzero_ps());
    _mm256_stream_ps(y + i + 8, _mm256_setzero_ps());
  }
  _mm_sfence();
  kScalarKernels.zero(y + i, n - i);
}

GRADCOMP_AVX2 void copy_uncached(const float* x, float* y, std::size_t n) {
  std::size_t i = until_line(y, n);
  kScalarKernels.copy_uncached(x, y, i);
  for (; i + 16 <= n; i += 16) {
    _mm256_stream_ps(y + i, _mm256_loadu_ps(x + i));
    _mm256_stream_ps(y + i + 8, _mm256_loadu_ps(x + i + 8));
  }
  _mm_sfence();
  kScalarKernels.copy_uncached(x + i, y + i, n - i);
}

GRADCOMP_AVX2 void zero_nonfinite(float* x, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    _mm256_storeu_ps(x + i, _mm256_andnot_ps(_mm256_castsi256_ps(nonfinite(v)), v));
  }
  kScalarKernels.zero_nonfinite(x + i, n - i);
}

GRADCOMP_AVX2 std::size_t collect(const float* x, std::size_t n, std::uint32_t base,
                                  std::uint32_t threshold, float* values, std::uint32_t* indices,
                                  std::size_t capacity, std::size_t* taken) {
  const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 32 <= n && capacity - count >= kCollectSlack; i += 32) {
    std::uint32_t hits = 0;
    for (int j = 0; j < 2; ++j) prefetch_ahead(x + i + 16 * j);
    for (int j = 0; j < 4; ++j) {
      const __m256i hit = _mm256_cmpgt_epi32(magnitude(_mm256_loadu_ps(x + i + 8 * j)), below);
      hits |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(hit))) << 8 * j;
    }
    for (; hits != 0; hits &= hits - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(hits));
      values[count] = x[at];
      indices[count] = base + static_cast<std::uint32_t>(at);
      ++count;
    }
  }
  std::size_t tail_taken = 0;
  count += kScalarKernels.collect(x + i, n - i, base + static_cast<std::uint32_t>(i), threshold,
                                  values + count, indices + count, capacity - count, &tail_taken);
  *taken = i + tail_taken;
  return count;
}

GRADCOMP_AVX2 std::uint32_t max_magnitude(const float* x, std::size_t n) {
  __m256i largest = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    largest = _mm256_max_epu32(largest, magnitude(_mm256_loadu_ps(x + i)));
  }
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  std::uint32_t most = kScalarKernels.max_magnitude(x + i, n - i);
  for (std::uint32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

// Sums 16 elements at a time into the 16 partial sums.
template <typename Term>
GRADCOMP_AVX2 inline double sum_terms(const float* x, std::size_t n, const Term& term) {
  __m256d quarters[4];
  for (__m256d& quarter : quarters) quarter = _mm256_setzero_pd();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 4; ++j) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j));
      quarters[j] = _mm256_add_pd(quarters[j], term.vector(wide));
    }
  }
  PartialSums sums;
  for (int j = 0; j < 4; ++j) _mm256_storeu_pd(sums.partial + 4 * j, quarters[j]);
  for (; i < n; ++i) sums.add(i, term.scalar(static_cast<double>(x[i])));
  return sums.total();
}

struct Magnitude {
  GRADCOMP_AVX2 __m256d vector(__m256d x) const {
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
  }
  double scalar(double x) const { return x < 0 ? -x : x; }
};

struct Square {
  GRADCOMP_AVX2 __m256d vector(__m256d x) const { return _mm256_mul_pd(x, x); }
  double scalar(double x) const { return x * x; }
};

GRADCOMP_AVX2 double sum_magnitudes(const float* x, std::size_t n) {
  return sum_terms(x, n, Magnitude{});
}

GRADCOMP_AVX2 double sum_squares(const float* x, std::size_t n) {
  return sum_terms(x, n, Square{});
}

// One Philox word of four blocks in the lower halves of the 64-bit lanes. In between, the upper
// halves are undefined: the multiplier reads only the lower ones.
struct PhiloxLanes {
  __m256i c0, c1, c2, c3;

  GRADCOMP_AVX2 void start(std::uint64_t block, std::uint32_t use) {
    c0 = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(block)),
                          _mm256_setr_epi64x(0, 1, 2, 3));
    c1 = _mm256_srli_epi64(c0, 32);
    c2 = _mm256_set1_epi64x(use);
    c3 = _mm256_setzero_si256();
  }

  GRADCOMP_AVX2 void step(__m256i key0, __m256i key1) {
    const __m256i product0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xD2511F53), c0);
    const __m256i product1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xCD9E8D57), c2);
    // A shuffle moves the upper halves down: shifts would compete for the multiplier's ports.
    c0 = _mm256_xor_si256(_mm256_shuffle_epi32(product1, 0xB1), _mm256_xor_si256(c1, key0));
    c2 = _mm256_xor_si256(_mm256_shuffle_epi32(product0, 0xB1), _mm256_xor_si256(c3, key1));
    c1 = product1;
    c3 = product0;
  }

  // The 16 words in order.
  GRADCOMP_AVX2 void finish(__m256i* words) const {
    const __m256i words01 = _mm256_blend_epi32(c0, _mm256_shuffle_epi32(c1, 0xB1), 0xAA);
    const __m256i words23 = _mm256_blend_epi32(c2, _mm256_shuffle_epi32(c3, 0xB1), 0xAA);
    // Interleaving works within 128-bit halves: blocks 0 and 2, then 1 and 3.
    const __m256i blocks02 = _mm256_unpacklo_epi64(words01, words23);
    const __m256i blocks13 = _mm256_unpackhi_epi64(words01, words23);
    words[0] = _mm256_permute2x128_si256(blocks02, blocks13, 0x20);
    words[1] = _mm256_permute2x128_si256(blocks02, blocks13, 0x31);
  }
};

// The 32 words of eight Philox blocks.
GRADCOMP_AVX2 inline void philox32(std::uint64_t stream, std::uint32_t use, std::uint64_t block,
                                   __m256i* words) {
  PhiloxLanes a, b;
  a.start(block, use);
  b.start(block + 4, use);
  auto key0 = static_cast<std::uint32_t>(stream);
  auto key1 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i keys0 = _mm256_set1_epi64x(key0);
    const __m256i keys1 = _mm256_set1_epi64x(key1);
    a.step(keys0, keys1);
    b.step(keys0, keys1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  a.finish(words);
  b.finish(words + 2);
}

// Writes a multiple of 32 words, and returns their number.
GRADCOMP_AVX2 inline std::size_t philox_words(std::uint64_t stream, std::uint32_t use,
                                              std::uint64_t first_block, std::uint32_t* out,
                                              std::size_t n) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i words[4];
    philox32(stream, use, first_block + i / 4, words);
    for (int j = 0; j < 4; ++j) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 8 * j), words[j]);
    }
  }
  return i;
}

GRADCOMP_AVX2 void rounding_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                  std::size_t n, const float* ahead) {
  const __m256i swap = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  for (std::size_t i = 0; i < n; i += kRoundingStep) {
    prefetch(ahead, i, kRoundingStep);
    __m256i words[4];
    philox32(stream, kRoundingBlocks, (first + i) / 8, words);
    for (int j = 0; j < 4; ++j) {
      auto* to = reinterpret_cast<__m256i*>(out + i + 32 * (j / 2) + 8 * (j % 2));
      _mm256_storeu_si256(to, words[j]);
      _mm256_storeu_si256(to + 2, _mm256_shuffle_epi8(words[j], swap));
    }
  }
}

GRADCOMP_AVX2 void random_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                std::size_t n) {
  const std::size_t done = philox_words(stream, kWordBlocks, first / 4, out, n);
  kScalarKernels.random_words(stream, first + done, out + done, n - done);
}

GRADCOMP_AVX2 void draw_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                              std::size_t n) {
  const std::size_t done = philox_words(stream, kDrawBlocks, first / 2, out, n);
  kScalarKernels.draw_words(stream, first + done / 2, out + done, n - done);
}

#define GRADCOMP_LEVEL GRADCOMP_AVX2
namespace loops {
#include "kernels/quantize_loops.hpp"
}  // namespace loops
#undef GRADCOMP_LEVEL
using loops::choose_places;
using loops::dynamic8_add;
using loops::dynamic8_decode;
using loops::f32_to_natural_zigzag;
using loops::fp8_add;
using loops::fp8_decode;
using loops::fp8_encode;
using loops::fp8_encode_randomly;
using loops::join_planes;
using loops::natural_add;
using loops::natural_decode;
using loops::natural_encode;
using loops::quantize;
using loops::quantize_randomly;
using loops::scale_levels;
using loops::scale_levels_add;
using loops::ternarize;
using planes::compress_bytes;
using planes::expand_bytes;
using planes::split_planes;

// See Dynamic8Lines.
struct Dynamic8Levels {
  Dynamic8Lines lines;

  GRADCOMP_AVX2 __m256 line(int k, __m256 x) const {
    return _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(lines.slopes[k])),
                         _mm256_set1_ps(lines.intercepts[k]));
  }

  GRADCOMP_AVX2 __m256 lower(int k, __m256 x) const {
    return _mm256_min_ps(line(k, x), line(k + 1, x));
  }

  // Levels of magnitudes, in units of 2^-16.
  GRADCOMP_AVX2 __m256i fixed(__m256 x) const {
    static_assert(Dynamic8Lines::kFirstLarge == 7 && Dynamic8Lines::kTop == 13, "as unrolled here");
    __m256 least = _mm256_min_ps(_mm256_min_ps(lower(7, x), lower(9, x)), lower(11, x));
    const __m256 small = _mm256_set1_ps(Dynamic8Lines::kLeastLarge);
    if (_mm256_movemask_ps(_mm256_cmp_ps(least, small, _CMP_LT_OQ)) != 0) {
      const __m256 low = _mm256_min_ps(_mm256_min_ps(lower(0, x), lower(2, x)), lower(4, x));
      least = _mm256_min_ps(least, _mm256_min_ps(low, line(6, x)));
    }
    return _mm256_cvttps_epi32(_mm256_max_ps(least, line(13, x)));
  }
};

GRADCOMP_AVX2 void dynamic8_encode(const float* x, float largest, std::uint8_t* out,
                                   std::size_t n) {
  if (largest < Dynamic8Lines::kSmallest) return loops::dynamic8_encode(x, largest, out, n);
  const Dynamic8& map = dynamic8();
  const Dynamic8Levels levels{map.lines(largest)};
  const __m256i near = _mm256_set1_epi32(Dynamic8Lines::kNear);
  const __m256i far = _mm256_set1_epi32(Dynamic8Lines::kFar);
  const __m256i zero_code = _mm256_set1_epi32(127);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x, n + i, 16);
    unsigned unsure = 0;
    __m256i codes[2];
    for (int j = 0; j < 2; ++j) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
      const __m256i fixed = levels.fixed(_mm256_castsi256_ps(magnitude(v)));
      const __m256i rest = _mm256_and_si256(_mm256_add_epi32(fixed, near), far);
      const __m256i close = _mm256_cmpeq_epi32(rest, _mm256_setzero_si256());
      unsure |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(close))) << 8 * j;
      const __m256i level = _mm256_srli_epi32(fixed, 16);
      const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(v), 31);
      const __m256i offset = _mm256_sub_epi32(_mm256_xor_si256(level, negative), negative);
      codes[j] = _mm256_add_epi32(offset, zero_code);
    }
    // Saturation turns code -1, of the value -1, into 0.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(codes[0], codes[1]), 0xD8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    for (; unsure != 0; unsure &= unsure - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(unsure));
      out[at] = dynamic8_code(map, x[at] / largest);
    }
  }
  loops::dynamic8_encode(x + i, largest, out + i, n - i);
}

GRADCOMP_AVX2 void pack_negative(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 below = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_setzero_ps(), _CMP_LT_OQ);
    out[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(below));
  }
  kScalarKernels.pack_negative(x + i, out + i / 8, n - i);
}

// All ones in the lanes of the set bits.
GRADCOMP_AVX2 inline __m256 lanes_of(std::uint8_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), lane), lane));
}

GRADCOMP_AVX2 void select_bits(const std::uint8_t* bits, float clear, float set, float* y,
                               std::size_t n) {
  const __m256 c = _mm256_set1_ps(clear);
  const __m256 s = _mm256_set1_ps(set);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_blendv_ps(c, s, lanes_of(bits[i / 8])));
  }
  kScalarKernels.select_bits(bits + i / 8, clear, set, y + i, n - i);
}

GRADCOMP_AVX2 void select_bits_add(const std::uint8_t* bits, float clear, float set, float* acc,
                                   std::size_t n) {
  const __m256 c = _mm256_set1_ps(clear);
  const __m256 s = _mm256_set1_ps(set);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_blendv_ps(c, s, lanes_of(bits[i / 8]));
    _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), value));
  }
  kScalarKernels.select_bits_add(bits + i / 8, clear, set, acc + i, n - i);
}

GRADCOMP_AVX2 Moments moments(const float* x, std::size_t n) {
  __m256d sums[4], squares[4];
  for (int j = 0; j < 4; ++j) sums[j] = squares[j] = _mm256_setzero_pd();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 4; ++j) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j));
      sums[j] = _mm256_add_pd(sums[j], wide);
      squares[j] = _mm256_add_pd(squares[j], _mm256_mul_pd(wide, wide));
    }
  }
  PartialSums sum, square;
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_pd(sum.partial + 4 * j, sums[j]);
    _mm256_storeu_pd(square.partial + 4 * j, squares[j]);
  }
  for (; i < n; ++i) {
    const auto wide = static_cast<double>(x[i]);
    sum.add(i, wide);
    square.add(i, wide * wide);
  }
  return {sum.total(), square.total()};
}

GRADCOMP_AVX2 SignedSums sum_by_sign(const float* x, std::size_t n) {
  const __m256d zero = _mm256_setzero_pd();
  __m256d negatives[4], others[4];
  for (int j = 0; j < 4; ++j) negatives[j] = others[j] = zero;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 4; ++j) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j));
      negatives[j] = _mm256_add_pd(negatives[j], _mm256_min_pd(zero, wide));
      others[j] = _mm256_add_pd(others[j], _mm256_max_pd(zero, wide));
    }
  }
  PartialSums negative, other;
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_pd(negative.partial + 4 * j, negatives[j]);
    _mm256_storeu_pd(other.partial + 4 * j, others[j]);
  }
  for (; i < n; ++i) {
    const SignedSums terms = split_by_sign(x[i]);
    negative.add(i, terms.negative);
    other.add(i, terms.others);
  }
  return {negative.total(), other.total()};
}

// Levels of 8 elements as 32-bit zigzag symbols.
GRADCOMP_AVX2 inline __m256i zigzag8(const float* x, const std::uint32_t* words, __m256 scale,
                                     __m256i levels) {
  const __m256 v = _mm256_loadu_ps(x);
  const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude(v)), scale);
  const __m256i noise =
      _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), 8);
  const __m256i fixed = _mm256_add_epi32(_mm256_cvttps_epi32(scaled), noise);
  const __m256i level = _mm256_min_epi32(_mm256_srli_epi32(fixed, 24), levels);
  const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(v), 31);
  return _mm256_max_epi32(_mm256_add_epi32(_mm256_add_epi32(level, level), negative),
                          _mm256_setzero_si256());
}

GRADCOMP_AVX2 void f32_to_zigzag(const float* x, const std::uint32_t* words, float scale,
                                 unsigned levels, std::uint8_t* symbols, std::size_t n) {
  const __m256 s = _mm256_set1_ps(scale);
  const __m256i most = _mm256_set1_epi32(static_cast<int>(levels));
  // Packing works within 128-bit halves: it leaves groups of four out of order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ab = _mm256_packus_epi32(zigzag8(x + i, words + i, s, most),
                                           zigzag8(x + i + 8, words + i + 8, s, most));
    const __m256i cd = _mm256_packus_epi32(zigzag8(x + i + 16, words + i + 16, s, most),
                                           zigzag8(x + i + 24, words + i + 24, s, most));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols + i),
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order));
  }
  kScalarKernels.f32_to_zigzag(x + i, words + i, scale, levels, symbols + i, n - i);
}

GRADCOMP_AVX2 inline __m256 zigzag_level8(const std::uint8_t* symbols) {
  const __m256i wide =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols)));
  const __m256i negative =
      _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_and_si256(wide, _mm256_set1_epi32(1)));
  return _mm256_cvtepi32_ps(_mm256_xor_si256(_mm256_srli_epi32(wide, 1), negative));
}

GRADCOMP_AVX2 void zigzag_to_f32(const std::uint8_t* symbols, float unit, float* y, std::size_t n) {
  const __m256 u = _mm256_set1_ps(unit);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(u, zigzag_level8(symbols + i)));
  }
  kScalarKernels.zigzag_to_f32(symbols + i, unit, y + i, n - i);
}

GRADCOMP_AVX2 void zigzag_add(const std::uint8_t* symbols, float unit, float weight, float* acc,
                              std::size_t n) {
  const __m256 u = _mm256_set1_ps(unit);
  const __m256 w = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    add_scaled(acc + i, w, _mm256_mul_ps(u, zigzag_level8(symbols + i)));
  }
  kScalarKernels.zigzag_add(symbols + i, unit, weight, acc + i, n - i);
}

GRADCOMP_AVX2 void flip_signs(const float* x, const std::uint32_t* words, float factor, float* y,
                              std::size_t n) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i word = _mm256_set1_epi32(static_cast<int>(words[i / 32]));
    __m256i shift = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    for (std::size_t j = i; j < i + 32; j += 8) {
      const __m256i flip = _mm256_and_si256(_mm256_sllv_epi32(word, shift), sign);
      const __m256 v = _mm256_mul_ps(f, _mm256_loadu_ps(x + j));
      _mm256_storeu_ps(y + j, _mm256_xor_ps(v, _mm256_castsi256_ps(flip)));
      shift = _mm256_sub_epi32(shift, _mm256_set1_epi32(8));
    }
  }
  kScalarKernels.flip_signs(x + i, words + i / 32, factor, y + i, n - i);
}

// One butterfly level between lanes: `other` holds each lane's partner, `upper` a sign bit in the
// lanes that subtract.
GRADCOMP_AVX2 inline __m256 lane_butterfly(__m256 x, __m256 other, __m256 upper) {
  return _mm256_add_ps(other, _mm256_xor_ps(x, upper));
}

GRADCOMP_AVX2 inline void butterfly(__m256& a, __m256& b) {
  const __m256 sum = _mm256_add_ps(a, b);
  b = _mm256_sub_ps(a, b);
  a = sum;
}

// Three levels, the lowest of this stride, of 2^log2 elements.
GRADCOMP_AVX2 inline void hadamard8(float* x, std::size_t n, std::size_t stride) {
  for (std::size_t i = 0; i < n; i += 8 * stride) {
    for (std::size_t j = i; j < i + stride; j += 8) {
      float* const p = x + j;
      __m256 v0 = _mm256_loadu_ps(p), v1 = _mm256_loadu_ps(p + stride),
             v2 = _mm256_loadu_ps(p + 2 * stride), v3 = _mm256_loadu_ps(p + 3 * stride),
             v4 = _mm256_loadu_ps(p + 4 * stride), v5 = _mm256_loadu_ps(p + 5 * stride),
             v6 = _mm256_loadu_ps(p + 6 * stride), v7 = _mm256_loadu_ps(p + 7 * stride);
      butterfly(v0, v1);
      butterfly(v2, v3);
      butterfly(v4, v5);
      butterfly(v6, v7);
      butterfly(v0, v2);
      butterfly(v1, v3);
      butterfly(v4, v6);
      butterfly(v5, v7);
      butterfly(v0, v4);
      butterfly(v1, v5);
      butterfly(v2, v6);
      butterfly(v3, v7);
      _mm256_storeu_ps(p, v0);
      _mm256_storeu_ps(p + stride, v1);
      _mm256_storeu_ps(p + 2 * stride, v2);
      _mm256_storeu_ps(p + 3 * stride, v3);
      _mm256_storeu_ps(p + 4 * stride, v4);
      _mm256_storeu_ps(p + 5 * stride, v5);
      _mm256_storeu_ps(p + 6 * stride, v6);
      _mm256_storeu_ps(p + 7 * stride, v7);
    }
  }
}

GRADCOMP_AVX2 void hadamard(float* x, unsigned log2) {
  if (log2 < 3) return kScalarKernels.hadamard(x, log2);
  const std::size_t n = std::size_t{1} << log2;
  const __m256 upper1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
  const __m256 upper2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
  const __m256 upper4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
  for (std::size_t i = 0; i < n; i += 8) {
    __m256 v = _mm256_loadu_ps(x + i);
    v = lane_butterfly(v, _mm256_permute_ps(v, 0xB1), upper1);
    v = lane_butterfly(v, _mm256_permute_ps(v, 0x4E), upper2);
    v = lane_butterfly(v, _mm256_permute2f128_ps(v, v, 0x01), upper4);
    _mm256_storeu_ps(x + i, v);
  }
  std::size_t stride = 8;
  for (; 8 * stride <= n; stride *= 8) hadamard8(x, n, stride);
  for (; stride < n; stride *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * stride) {
      for (std::size_t j = i; j < i + stride; j += 8) {
        __m256 a = _mm256_loadu_ps(x + j);
        __m256 b = _mm256_loadu_ps(x + j + stride);
        butterfly(a, b);
        _mm256_storeu_ps(x + j, a);
        _mm256_storeu_ps(x + j + stride, b);
      }
    }
  }
}

// Lowest bytes of eight 32-bit symbols.
GRADCOMP_AVX2 inline void store_symbols(std::uint8_t* out, __m256i symbols) {
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(symbols), _mm256_extracti128_si256(symbols, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

GRADCOMP_AVX2 void quantize_uniform(const float* x, float scale, float top,
                                    const std::uint32_t* noise, std::uint8_t* symbols,
                                    std::size_t n) {
  const __m256 s = _mm256_set1_ps(scale);
  const __m256 most = _mm256_set1_ps(top);
  const __m256 middle = _mm256_set1_ps(0.5f * top);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 at = _mm256_add_ps(_mm256_mul_ps(s, _mm256_loadu_ps(x + i)), middle);
    at = _mm256_min_ps(_mm256_max_ps(at, _mm256_setzero_ps()), most);
    if (noise == nullptr) {
      store_symbols(symbols + i, _mm256_cvtps_epi32(at));
    } else {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(noise + i));
      const __m256 fraction = _mm256_cvtepi32_ps(_mm256_srli_epi32(words, 8));
      at = _mm256_add_ps(at, _mm256_mul_ps(fraction, _mm256_set1_ps(0x1p-24f)));
      store_symbols(symbols + i, _mm256_cvttps_epi32(_mm256_min_ps(at, most)));
    }
  }
  kScalarKernels.quantize_uniform(x + i, scale, top, noise == nullptr ? nullptr : noise + i,
                                  symbols + i, n - i);
}

// Adds eight float32 terms to two vectors of partial sums.
GRADCOMP_AVX2 inline void add_terms(__m256d* sums, __m256 terms) {
  sums[0] = _mm256_add_pd(sums[0], _mm256_cvtps_pd(_mm256_castps256_ps128(terms)));
  sums[1] = _mm256_add_pd(sums[1], _mm256_cvtps_pd(_mm256_extractf128_ps(terms, 1)));
}

GRADCOMP_AVX2 CentroidSums quantize_centroids(const float* x, float scale, const Centroids& c,
                                              bool with_energy, std::uint8_t* symbols,
                                              std::size_t n) {
  const __m256 s = _mm256_set1_ps(scale);
  const __m256i flip_positive = _mm256_set1_epi32(static_cast<int>(c.half));
  const __m256i flip_change = _mm256_set1_epi32(static_cast<int>(c.half ^ (c.half - 1)));
  const bool few = c.bits <= 4;
  const __m256 positive = _mm256_loadu_ps(c.positive);
  __m256d dots[4], energies[4];
  for (int q = 0; q < 4; ++q) dots[q] = energies[q] = _mm256_setzero_pd();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t part = 0; part < 2; ++part) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * part);
      const __m256 size = _mm256_castsi256_ps(magnitude(v));
      const __m256 scaled = _mm256_mul_ps(size, s);
      __m256i level = _mm256_setzero_si256();
      __m256 centroid;
      if (few) {
        for (unsigned k = 0; k + 1 < c.half; ++k) {
          const __m256 above = _mm256_cmp_ps(scaled, _mm256_set1_ps(c.bounds[k]), _CMP_GT_OQ);
          level = _mm256_sub_epi32(level, _mm256_castps_si256(above));
        }
        centroid = _mm256_permutevar8x32_ps(positive, level);
      } else {
        const __m256 at =
            _mm256_min_ps(_mm256_mul_ps(scaled, _mm256_set1_ps(Centroids::kCellsPerUnit)),
                          _mm256_set1_ps(Centroids::kCells - 1));
        const __m256i cell = _mm256_cvttps_epi32(at);
        const auto* levels = reinterpret_cast<const int*>(c.cell_level);
        const __m256 above =
            _mm256_cmp_ps(scaled, _mm256_i32gather_ps(c.cell_bound, cell, 4), _CMP_GT_OQ);
        level =
            _mm256_sub_epi32(_mm256_i32gather_epi32(levels, cell, 4), _mm256_castps_si256(above));
        centroid = _mm256_i32gather_ps(c.positive, level, 4);
      }
      const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(v), 31);
      const __m256i flip = _mm256_xor_si256(flip_positive, _mm256_and_si256(negative, flip_change));
      store_symbols(symbols + i + 8 * part, _mm256_xor_si256(level, flip));
      add_terms(dots + 2 * part, _mm256_mul_ps(size, centroid));
      if (with_energy) add_terms(energies + 2 * part, _mm256_mul_ps(centroid, centroid));
    }
  }
  PartialSums dot, energy;
  for (int q = 0; q < 4; ++q) {
    _mm256_storeu_pd(dot.partial + 4 * q, dots[q]);
    _mm256_storeu_pd(energy.partial + 4 * q, energies[q]);
  }
  for (; i < n; ++i) {
    const CentroidSums one =
        kScalarKernels.quantize_centroids(x + i, scale, c, with_energy, symbols + i, 1);
    dot.add(i, one.dot);
    energy.add(i, one.energy);
  }
  return {dot.total(), energy.total()};
}

GRADCOMP_AVX2 void look_up(const std::uint8_t* symbols, const float* table, unsigned bits, float* y,
                           std::size_t n) {
  float small[16] = {};
  for (std::size_t k = 0; bits <= 4 && k < std::size_t{1} << bits; ++k) small[k] = table[k];
  const __m256 low = _mm256_loadu_ps(small);
  const __m256 high = _mm256_loadu_ps(small + 8);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i at =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols + i)));
    __m256 value;
    if (bits <= 4) {
      // Bit 3 of the symbol picks the half: blending looks at the top bit.
      const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
      value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, at),
                               _mm256_permutevar8x32_ps(high, at), upper);
    } else {
      value = _mm256_i32gather_ps(table, at, 4);
    }
    _mm256_storeu_ps(y + i, value);
  }
  kScalarKernels.look_up(symbols + i, table, bits, y + i, n - i);
}

// AVX2 has no instruction to compress the elements of one width.
FixedCounts fixed_encode(const float* x, float per_unit, const FixedOutput& out, std::size_t n) {
  return kScalarKernels.fixed_encode(x, per_unit, out, n);
}

void fixed_decode(const FixedInput& in, float unit, float* y, std::size_t n) {
  kScalarKernels.fixed_decode(in, unit, y, n);
}

GRADCOMP_AVX2 FixedCounts fixed_count(const std::uint8_t* low, const std::uint8_t* high,
                                      std::size_t n) {
  return count_tags(low, high, n);
}

constexpr auto crc32c = crc32c_sse42;

constexpr const CodingKernels* coding = &kAvx2CodingKernels;
constexpr const PolarKernels* polar = &kAvx2PolarKernels;
constexpr const LinalgKernels* linalg = &kAvx2LinalgKernels;

}  // namespace

const Kernels kAvx2Kernels = GRADCOMP_KERNEL_TABLE("avx2");

}  // namespace gradcomp

#endif
