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

GRADCOMP_AVX512 inline __m256i load_u16x16(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

GRADCOMP_AVX512 inline __m512 load_f16x16(const std::uint8_t* p) {
  return _mm512_cvtph_ps(load_u16x16(p));
}

GRADCOMP_AVX512 inline __m512 load_bf16x16(const std::uint8_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_u16x16(p)), 16));
}

GRADCOMP_AVX512 inline __m512i magnitude(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

GRADCOMP_AVX512 inline __mmask16 nonfinite(__m512 x) {
  return _mm512_cmpge_epi32_mask(magnitude(x), _mm512_set1_epi32(kInfBits));
}

GRADCOMP_AVX512 inline void add_scaled(float* acc, __m512 weight, __m512 x) {
  _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), _mm512_mul_ps(weight, x)));
}

// Finite values that would round to Inf become +-65504.
GRADCOMP_AVX512 inline __m512 clamp_to_half(__m512 x) {
  const __m512i m = magnitude(x);
  const __mmask16 over = _mm512_mask_cmplt_epi32_mask(
      _mm512_cmpge_epi32_mask(m, _mm512_set1_epi32(kHalfOverflow)), m, _mm512_set1_epi32(kInfBits));
  const __m512 limit =
      _mm512_or_ps(_mm512_and_ps(x, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(65504.0f));
  return _mm512_mask_blend_ps(over, x, limit);
}

GRADCOMP_AVX512 void f32_to_f16(const float* x, std::uint8_t* out, std::size_t n, bool saturate) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 v = _mm512_loadu_ps(x + i);
    if (saturate) v = clamp_to_half(v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  kScalarKernels.f32_to_f16(x + i, out + 2 * i, n - i, saturate);
}

GRADCOMP_AVX512 void f16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, load_f16x16(in + 2 * i));
  kScalarKernels.f16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_AVX512 void f16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) add_scaled(acc + i, w, load_f16x16(in + 2 * i));
  kScalarKernels.f16_add(in + 2 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX512 inline __m256i bfloat_bits(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude(x), _mm512_set1_epi32(kInfBits));
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

GRADCOMP_AVX512 void f32_to_bf16(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                        bfloat_bits(_mm512_loadu_ps(x + i)));
  }
  kScalarKernels.f32_to_bf16(x + i, out + 2 * i, n - i);
}

GRADCOMP_AVX512 void bf16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, load_bf16x16(in + 2 * i));
  kScalarKernels.bf16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_AVX512 void bf16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) add_scaled(acc + i, w, load_bf16x16(in + 2 * i));
  kScalarKernels.bf16_add(in + 2 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX512 void f32_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    add_scaled(acc + i, w, _mm512_castsi512_ps(_mm512_loadu_si512(in + 4 * i)));
  }
  kScalarKernels.f32_add(in + 4 * i, weight, acc + i, n - i);
}

GRADCOMP_AVX512 bool compensate(float* residual, const float* grad, float beta, float gamma,
                                std::size_t n) {
  const __m512 b = _mm512_set1_ps(beta);
  const __m512 g = _mm512_set1_ps(gamma);
  unsigned bad = 0;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 corrected = _mm512_add_ps(_mm512_mul_ps(b, _mm512_loadu_ps(residual + i)),
                                           _mm512_mul_ps(g, _mm512_loadu_ps(grad + i)));
    _mm512_storeu_ps(residual + i, corrected);
    bad |= nonfinite(corrected);
  }
  const bool tail_finite = kScalarKernels.compensate(residual + i, grad + i, beta, gamma, n - i);
  return tail_finite && bad == 0;
}

GRADCOMP_AVX512 bool correct_momentum(float* velocity, float* momentum, const float* grad,
                                      float factor, float scale, bool nesterov, std::size_t n) {
  const __m512 f = _mm512_set1_ps(factor);
  const __m512 s = _mm512_set1_ps(scale);
  unsigned bad = 0;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 scaled = _mm512_mul_ps(s, _mm512_loadu_ps(grad + i));
    __m512 m = _mm512_loadu_ps(momentum + i);
    __m512 step;
    if (nesterov) {
      m = _mm512_mul_ps(f, _mm512_add_ps(m, scaled));
      step = _mm512_add_ps(m, scaled);
    } else {
      m = _mm512_add_ps(_mm512_mul_ps(f, m), scaled);
      step = m;
    }
    _mm512_storeu_ps(momentum + i, m);
    const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(velocity + i), step);
    _mm512_storeu_ps(velocity + i, sum);
    bad |= nonfinite(sum);
  }
  const bool tail_finite = kScalarKernels.correct_momentum(velocity + i, momentum + i, grad + i,
                                                           factor, scale, nesterov, n - i);
  return tail_finite && bad == 0;
}

GRADCOMP_AVX512 void zero(float* y, std::size_t n) {
  if (n < kUncachedFrom) return kScalarKernels.zero(y, n);
  std::size_t i = until_line(y, n);
  kScalarKernels.zero(y, i);
  for (; i + 16 <= n; i += 16) _mm512_stream_ps(y + i, _mm512_setzero_ps());
  _mm_sfence();
  kScalarKernels.zero(y + i, n - i);
}

GRADCOMP_AVX512 void copy_uncached(const float* x, float* y, std::size_t n) {
  std::size_t i = until_line(y, n);
  kScalarKernels.copy_uncached(x, y, i);
  for (; i + 16 <= n; i += 16) _mm512_stream_ps(y + i, _mm512_loadu_ps(x + i));
  _mm_sfence();
  kScalarKernels.copy_uncached(x + i, y + i, n - i);
}

GRADCOMP_AVX512 void zero_nonfinite(float* x, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_mask_storeu_ps(x + i, nonfinite(_mm512_loadu_ps(x + i)), _mm512_setzero_ps());
  }
  kScalarKernels.zero_nonfinite(x + i, n - i);
}

GRADCOMP_AVX512 std::size_t collect(const float* x, std::size_t n, std::uint32_t base,
                                    std::uint32_t threshold, float* values, std::uint32_t* indices,
                                    std::size_t capacity, std::size_t* taken) {
  const __m512i least = _mm512_set1_epi32(static_cast<int>(threshold));
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 64 <= n && capacity - count >= kCollectSlack; i += 64) {
    __m512 v[4];
    __m512i m[4];
    for (int j = 0; j < 4; ++j) {
      prefetch_ahead(x + i + 16 * j);
      v[j] = _mm512_loadu_ps(x + i + 16 * j);
      m[j] = magnitude(v[j]);
    }
    const __m512i largest =
        _mm512_max_epi32(_mm512_max_epi32(m[0], m[1]), _mm512_max_epi32(m[2], m[3]));
    if (_mm512_cmpge_epi32_mask(largest, least) == 0) continue;
    for (int j = 0; j < 4; ++j) {
      const __mmask16 hit = _mm512_cmpge_epi32_mask(m[j], least);
      const std::uint32_t first =
          base + static_cast<std::uint32_t>(i) + 16u * static_cast<unsigned>(j);
      const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first)));
      // Compress in a register and store it whole: compressing into memory is slow on some CPUs.
      // The slack holds the lanes written beyond the hits.
      _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(hit, v[j]));
      _mm512_storeu_si512(indices + count, _mm512_maskz_compress_epi32(hit, index));
      count += static_cast<std::size_t>(__builtin_popcount(hit));
    }
  }
  std::size_t tail_taken = 0;
  count += kScalarKernels.collect(x + i, n - i, base + static_cast<std::uint32_t>(i), threshold,
                                  values + count, indices + count, capacity - count, &tail_taken);
  *taken = i + tail_taken;
  return count;
}

GRADCOMP_AVX512 std::uint32_t max_magnitude(const float* x, std::size_t n) {
  __m512i largest = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    largest = _mm512_max_epu32(largest, magnitude(_mm512_loadu_ps(x + i)));
  }
  const std::uint32_t tail = kScalarKernels.max_magnitude(x + i, n - i);
  const std::uint32_t body = _mm512_reduce_max_epu32(largest);
  return body > tail ? body : tail;
}

// Sums 16 elements at a time into the 16 partial sums.
template <typename Term>
GRADCOMP_AVX512 inline double sum_terms(const float* x, std::size_t n, const Term& term) {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    low = _mm512_add_pd(low, term.vector(_mm512_cvtps_pd(_mm256_loadu_ps(x + i))));
    high = _mm512_add_pd(high, term.vector(_mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8))));
  }
  PartialSums sums;
  _mm512_storeu_pd(sums.partial, low);
  _mm512_storeu_pd(sums.partial + 8, high);
  for (; i < n; ++i) sums.add(i, term.scalar(static_cast<double>(x[i])));
  return sums.total();
}

struct Magnitude {
  GRADCOMP_AVX512 __m512d vector(__m512d x) const { return _mm512_abs_pd(x); }
  double scalar(double x) const { return x < 0 ? -x : x; }
};

struct Square {
  GRADCOMP_AVX512 __m512d vector(__m512d x) const { return _mm512_mul_pd(x, x); }
  double scalar(double x) const { return x * x; }
};

GRADCOMP_AVX512 double sum_magnitudes(const float* x, std::size_t n) {
  return sum_terms(x, n, Magnitude{});
}

GRADCOMP_AVX512 double sum_squares(const float* x, std::size_t n) {
  return sum_terms(x, n, Square{});
}

// One Philox word of eight blocks in the lower halves of the 64-bit lanes. In between, the upper
// halves are undefined: the multiplier reads only the lower ones.
struct PhiloxLanes {
  __m512i c0, c1, c2, c3;

  GRADCOMP_AVX512 void start(__m512i block, __m512i block_upper, std::uint32_t use) {
    c0 = block;
    c1 = block_upper;
    c2 = _mm512_set1_epi64(use);
    c3 = _mm512_setzero_si512();
  }

  GRADCOMP_AVX512 void step(__m512i key0, __m512i key1) {
    const __m512i product0 = _mm512_mul_epu32(_mm512_set1_epi64(0xD2511F53), c0);
    const __m512i product1 = _mm512_mul_epu32(_mm512_set1_epi64(0xCD9E8D57), c2);
    // A shuffle moves the upper halves down: shifts would compete for the multiplier's port.
    c0 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(product1, _MM_PERM_CDAB), c1, key0, 0x96);
    c2 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(product0, _MM_PERM_CDAB), c3, key1, 0x96);
    c1 = product1;
    c3 = product0;
  }

  // The 32 words in order.
  GRADCOMP_AVX512 void finish(__m512i* words) const {
    const __m512i order0 = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i order1 = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    const __m512i words01 = _mm512_mask_shuffle_epi32(c0, 0xAAAA, c1, _MM_PERM_CDAB);
    const __m512i words23 = _mm512_mask_shuffle_epi32(c2, 0xAAAA, c3, _MM_PERM_CDAB);
    words[0] = _mm512_permutex2var_epi64(words01, order0, words23);
    words[1] = _mm512_permutex2var_epi64(words01, order1, words23);
  }
};

// Philox blocks of one stream and use.
struct Philox {
  __m512i keys[20];  // of ten rounds
  std::uint32_t use;

  GRADCOMP_AVX512 void start(std::uint64_t stream, std::uint32_t of_use) {
    auto key0 = static_cast<std::uint32_t>(stream);
    auto key1 = static_cast<std::uint32_t>(stream >> 32);
    for (int round = 0; round < 10; ++round) {
      keys[2 * round] = _mm512_set1_epi64(key0);
      keys[2 * round + 1] = _mm512_set1_epi64(key1);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    use = of_use;
  }

  // Words of 8 * kSets blocks. While one set waits for its multiplications, the others continue.
  // kShort: all blocks are below 2^32, which saves the constant part of the first two rounds.
  template <int kSets, bool kShort>
  GRADCOMP_AVX512 void words(std::uint64_t block, __m512i* out) const {
    PhiloxLanes sets[kSets];
    const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    for (int j = 0; j < kSets; ++j) {
      const __m512i blocks =
          _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(block) + 8 * j), lanes);
      sets[j].start(blocks, kShort ? _mm512_setzero_si512() : _mm512_srli_epi64(blocks, 32), use);
    }
    for (int round = 0; round < 10; ++round) {
      for (int j = 0; j < kSets; ++j) sets[j].step(keys[2 * round], keys[2 * round + 1]);
    }
    for (int j = 0; j < kSets; ++j) sets[j].finish(out + 2 * j);
  }
};

// Writes a multiple of 128 words, and returns their number.
GRADCOMP_AVX512 inline std::size_t philox_words(std::uint64_t stream, std::uint32_t use,
                                                std::uint64_t first_block, std::uint32_t* out,
                                                std::size_t n) {
  Philox philox;
  philox.start(stream, use);
  std::size_t i = 0;
  for (; i + 128 <= n; i += 128) {
    __m512i words[8];
    philox.words<4, false>(first_block + i / 4, words);
    for (int j = 0; j < 8; ++j) _mm512_storeu_si512(out + i + 16 * j, words[j]);
  }
  return i;
}

template <int kSets>
GRADCOMP_AVX512 inline void store_rounding_words(const Philox& philox, std::uint64_t first,
                                                 std::uint32_t* out) {
  __m512i words[2 * kSets];
  philox.words<kSets, true>(first / 8, words);
  for (int j = 0; j < 2 * kSets; ++j) {
    _mm512_storeu_si512(out + 32 * j, words[j]);
    _mm512_storeu_si512(out + 32 * j + 16, _mm512_rol_epi32(words[j], 16));
  }
}

GRADCOMP_AVX512 void rounding_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                    std::size_t n, const float* ahead) {
  Philox philox;
  philox.start(stream, kRoundingBlocks);
  std::size_t i = 0;
  for (; i + 256 <= n; i += 256) {
    prefetch(ahead, i, 256);
    store_rounding_words<4>(philox, first + i, out + i);
  }
  for (; i < n; i += kRoundingStep) {
    prefetch(ahead, i, kRoundingStep);
    store_rounding_words<1>(philox, first + i, out + i);
  }
}

GRADCOMP_AVX512 void random_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                  std::size_t n) {
  const std::size_t done = philox_words(stream, kWordBlocks, first / 4, out, n);
  kScalarKernels.random_words(stream, first + done, out + done, n - done);
}

GRADCOMP_AVX512 void draw_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                std::size_t n) {
  const std::size_t done = philox_words(stream, kDrawBlocks, first / 2, out, n);
  kScalarKernels.draw_words(stream, first + done / 2, out + done, n - done);
}

#define GRADCOMP_LEVEL GRADCOMP_AVX512
namespace loops {
#include "kernels/quantize_loops.hpp"
}  // namespace loops
#undef GRADCOMP_LEVEL
using loops::choose_places;
using loops::f32_to_natural_zigzag;
using loops::fp8_add;
using loops::fp8_decode;
using loops::fp8_encode;
using loops::fp8_encode_randomly;
using loops::join_planes;
using loops::quantize;
using loops::quantize_randomly;
using loops::scale_levels;
using loops::scale_levels_add;
using loops::ternarize;
using planes::compress_bytes;
using planes::expand_bytes;
using planes::split_planes;

GRADCOMP_AVX512 void pack_negative(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __mmask16 below =
        _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_setzero_ps(), _CMP_LT_OQ);
    store(out + i / 8, static_cast<std::uint16_t>(below));
  }
  kScalarKernels.pack_negative(x + i, out + i / 8, n - i);
}

GRADCOMP_AVX512 void select_bits(const std::uint8_t* bits, float clear, float set, float* y,
                                 std::size_t n) {
  const __m512 c = _mm512_set1_ps(clear);
  const __m512 s = _mm512_set1_ps(set);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_mask_blend_ps(load<std::uint16_t>(bits + i / 8), c, s));
  }
  kScalarKernels.select_bits(bits + i / 8, clear, set, y + i, n - i);
}

GRADCOMP_AVX512 void select_bits_add(const std::uint8_t* bits, float clear, float set, float* acc,
                                     std::size_t n) {
  const __m512 c = _mm512_set1_ps(clear);
  const __m512 s = _mm512_set1_ps(set);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 value = _mm512_mask_blend_ps(load<std::uint16_t>(bits + i / 8), c, s);
    _mm512_storeu_ps(acc + i, _mm512_add_ps(_mm512_loadu_ps(acc + i), value));
  }
  kScalarKernels.select_bits_add(bits + i / 8, clear, set, acc + i, n - i);
}

GRADCOMP_AVX512 Moments moments(const float* x, std::size_t n) {
  __m512d sums[2], squares[2];
  for (int j = 0; j < 2; ++j) sums[j] = squares[j] = _mm512_setzero_pd();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 2; ++j) {
      const __m512d wide = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * j));
      sums[j] = _mm512_add_pd(sums[j], wide);
      squares[j] = _mm512_add_pd(squares[j], _mm512_mul_pd(wide, wide));
    }
  }
  PartialSums sum, square;
  for (int j = 0; j < 2; ++j) {
    _mm512_storeu_pd(sum.partial + 8 * j, sums[j]);
    _mm512_storeu_pd(square.partial + 8 * j, squares[j]);
  }
  for (; i < n; ++i) {
    const auto wide = static_cast<double>(x[i]);
    sum.add(i, wide);
    square.add(i, wide * wide);
  }
  return {sum.total(), square.total()};
}

GRADCOMP_AVX512 SignedSums sum_by_sign(const float* x, std::size_t n) {
  const __m512d zero = _mm512_setzero_pd();
  __m512d negatives[2], others[2];
  for (int j = 0; j < 2; ++j) negatives[j] = others[j] = zero;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 2; ++j) {
      const __m512d wide = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * j));
      negatives[j] = _mm512_add_pd(negatives[j], _mm512_min_pd(zero, wide));
      others[j] = _mm512_add_pd(others[j], _mm512_max_pd(zero, wide));
    }
  }
  PartialSums negative, other;
  for (int j = 0; j < 2; ++j) {
    _mm512_storeu_pd(negative.partial + 8 * j, negatives[j]);
    _mm512_storeu_pd(other.partial + 8 * j, others[j]);
  }
  for (; i < n; ++i) {
    const SignedSums terms = split_by_sign(x[i]);
    negative.add(i, terms.negative);
    other.add(i, terms.others);
  }
  return {negative.total(), other.total()};
}

GRADCOMP_AVX512 void natural_encode(const float* x, const std::uint32_t* words, std::uint8_t* out,
                                    std::size_t n) {
  const __m512i offset = _mm512_set1_epi32(kNaturalOffset);
  const __m512i sign_bit = _mm512_set1_epi32(0x80);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512i m = magnitude(v);
    // ~word >> 9, as in the loop of the other levels.
    const __m512i word = _mm512_loadu_si512(words + i);
    const __m512i rest = _mm512_srli_epi32(_mm512_ternarylogic_epi32(word, word, word, 0x0F), 9);
    __m512i code = _mm512_srli_epi32(_mm512_add_epi32(m, rest), 23);
    code = _mm512_sub_epi32(_mm512_max_epu32(code, offset), offset);
    code = _mm512_min_epu32(code, _mm512_set1_epi32(127));
    const __mmask16 negative =
        _mm512_mask_test_epi32_mask(_mm512_movepi32_mask(_mm512_castps_si512(v)), code, code);
    code = _mm512_mask_or_epi32(code, negative, code, sign_bit);
    code = _mm512_mask_mov_epi32(code, nonfinite(v), sign_bit);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(code));
  }
  loops::natural_encode(x + i, words + i, out + i, n - i);
}

// The values of 16 codes.
GRADCOMP_AVX512 inline __m512 natural_values(const std::uint8_t* in) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  const __m512i code = _mm512_and_si512(wide, _mm512_set1_epi32(0x7F));
  const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(wide, code), 24);
  const __mmask16 power = _mm512_test_epi32_mask(code, code);
  const __m512i value = _mm512_or_si512(
      sign, _mm512_slli_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(kNaturalOffset)), 23));
  const __m512i special =
      _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(sign, sign), _mm512_set1_epi32(kNanBits));
  return _mm512_castsi512_ps(_mm512_mask_blend_epi32(power, special, value));
}

GRADCOMP_AVX512 void natural_decode(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, natural_values(in + i));
  loops::natural_decode(in + i, y + i, n - i);
}

GRADCOMP_AVX512 void natural_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) add_scaled(acc + i, w, natural_values(in + i));
  loops::natural_add(in + i, weight, acc + i, n - i);
}

// Lowest bytes of the numbers of four vectors, none above 255, in order.
GRADCOMP_AVX512 inline __m512i to_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  // Packing works within 128-bit quarters: it leaves groups of four out of order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(
      order, _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)));
}

// See Dynamic8Lines.
struct Dynamic8Levels {
  __m512 slopes[Dynamic8Lines::kLines];
  __m512 intercepts[Dynamic8Lines::kLines];

  GRADCOMP_AVX512 void start(const Dynamic8Lines& lines) {
    for (int k = 0; k < Dynamic8Lines::kLines; ++k) {
      slopes[k] = _mm512_set1_ps(lines.slopes[k]);
      intercepts[k] = _mm512_set1_ps(lines.intercepts[k]);
    }
  }

  GRADCOMP_AVX512 __m512 line(int k, __m512 x) const {
    return _mm512_fmadd_ps(x, slopes[k], intercepts[k]);
  }

  GRADCOMP_AVX512 __m512 lower(int k, __m512 x) const {
    return _mm512_min_ps(line(k, x), line(k + 1, x));
  }

  // Levels of magnitudes, in units of 2^-16.
  GRADCOMP_AVX512 __m512i fixed(__m512 x) const {
    static_assert(Dynamic8Lines::kFirstLarge == 7 && Dynamic8Lines::kTop == 13, "as unrolled here");
    __m512 least = _mm512_min_ps(_mm512_min_ps(lower(7, x), lower(9, x)), lower(11, x));
    const __m512 small = _mm512_set1_ps(Dynamic8Lines::kLeastLarge);
    if (_mm512_cmp_ps_mask(least, small, _CMP_LT_OQ) != 0) {
      const __m512 low = _mm512_min_ps(_mm512_min_ps(lower(0, x), lower(2, x)), lower(4, x));
      least = _mm512_min_ps(least, _mm512_min_ps(low, line(6, x)));
    }
    return _mm512_cvttps_epi32(_mm512_max_ps(least, line(13, x)));
  }
};

GRADCOMP_AVX512 void dynamic8_encode(const float* x, float largest, std::uint8_t* out,
                                     std::size_t n) {
  if (largest < Dynamic8Lines::kSmallest) return loops::dynamic8_encode(x, largest, out, n);
  const Dynamic8& map = dynamic8();
  Dynamic8Levels levels;
  levels.start(map.lines(largest));
  const __m512i near = _mm512_set1_epi32(Dynamic8Lines::kNear);
  const __m512i far = _mm512_set1_epi32(Dynamic8Lines::kFar);
  const __m512i zero_code = _mm512_set1_epi8(127);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    prefetch(x, n + i, 64);
    __m512i level[4];
    __mmask64 negative = 0;
    __mmask64 unsure = 0;
    for (int j = 0; j < 4; ++j) {
      const __m512 v = _mm512_loadu_ps(x + i + 16 * j);
      const __m512i fixed = levels.fixed(_mm512_castsi512_ps(magnitude(v)));
      const std::uint64_t sign = _mm512_movepi32_mask(_mm512_castps_si512(v));
      const std::uint64_t close = _mm512_testn_epi32_mask(_mm512_add_epi32(fixed, near), far);
      negative |= sign << 16 * j;
      unsure |= close << 16 * j;
      level[j] = _mm512_srli_epi32(fixed, 16);
    }
    const __m512i bytes = to_bytes(level[0], level[1], level[2], level[3]);
    const __m512i code = _mm512_mask_sub_epi8(_mm512_add_epi8(zero_code, bytes), negative,
                                              zero_code, _mm512_min_epu8(bytes, zero_code));
    _mm512_storeu_si512(out + i, code);
    for (; unsure != 0; unsure &= unsure - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctzll(unsure));
      out[at] = dynamic8_code(map, x[at] / largest);
    }
  }
  loops::dynamic8_encode(x + i, largest, out + i, n - i);
}

// The values of 16 codes, from a table in 8 registers: negative values mirror the positive ones.
struct Dynamic8Values {
  __m512 table[8];

  GRADCOMP_AVX512 void load_table() {
    for (int j = 0; j < 8; ++j) table[j] = _mm512_loadu_ps(dynamic8().values + 127 + 16 * j);
  }

  GRADCOMP_AVX512 __m512 look_up(const std::uint8_t* in) const {
    const __m512i code =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    const __m512i offset = _mm512_sub_epi32(code, _mm512_set1_epi32(127));
    const __m512i level = _mm512_abs_epi32(offset);
    __m512 pairs[4];
    for (int j = 0; j < 4; ++j) {
      pairs[j] = _mm512_permutex2var_ps(table[2 * j], level, table[2 * j + 1]);
    }
    const __mmask16 bit5 = _mm512_test_epi32_mask(level, _mm512_set1_epi32(32));
    const __mmask16 bit6 = _mm512_test_epi32_mask(level, _mm512_set1_epi32(64));
    const __m512 low = _mm512_mask_blend_ps(bit5, pairs[0], pairs[1]);
    const __m512 high = _mm512_mask_blend_ps(bit5, pairs[2], pairs[3]);
    const __m512 magnitude =
        _mm512_mask_blend_ps(_mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255)),
                             _mm512_mask_blend_ps(bit6, low, high), _mm512_set1_ps(1.0f));
    const __m512i sign = _mm512_and_si512(offset, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude), sign));
  }
};

GRADCOMP_AVX512 void dynamic8_decode(const std::uint8_t* in, float scale, float* y, std::size_t n) {
  Dynamic8Values values;
  values.load_table();
  const __m512 s = _mm512_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, _mm512_mul_ps(values.look_up(in + i), s));
  loops::dynamic8_decode(in + i, scale, y + i, n - i);
}

GRADCOMP_AVX512 void dynamic8_add(const std::uint8_t* in, float scale, float weight, float* acc,
                                  std::size_t n) {
  Dynamic8Values values;
  values.load_table();
  const __m512 s = _mm512_set1_ps(scale);
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) add_scaled(acc + i, w, _mm512_mul_ps(values.look_up(in + i), s));
  loops::dynamic8_add(in + i, scale, weight, acc + i, n - i);
}

GRADCOMP_AVX512 void f32_to_zigzag(const float* x, const std::uint32_t* words, float scale,
                                   unsigned levels, std::uint8_t* symbols, std::size_t n) {
  const __m512 s = _mm512_set1_ps(scale);
  const __m512i most = _mm512_set1_epi32(static_cast<int>(levels));
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude(v)), s);
    const __m512i noise = _mm512_srli_epi32(_mm512_loadu_si512(words + i), 8);
    const __m512i fixed = _mm512_add_epi32(_mm512_cvttps_epi32(scaled), noise);
    const __m512i level = _mm512_min_epi32(_mm512_srli_epi32(fixed, 24), most);
    const __m512i negative = _mm512_srai_epi32(_mm512_castps_si512(v), 31);
    const __m512i symbol = _mm512_max_epi32(
        _mm512_add_epi32(_mm512_add_epi32(level, level), negative), _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + i), _mm512_cvtepi32_epi8(symbol));
  }
  kScalarKernels.f32_to_zigzag(x + i, words + i, scale, levels, symbols + i, n - i);
}

GRADCOMP_AVX512 inline __m512 zigzag_level16(const std::uint8_t* symbols) {
  const __m512i wide =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols)));
  const __m512i negative =
      _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(wide, _mm512_set1_epi32(1)));
  return _mm512_cvtepi32_ps(_mm512_xor_si512(_mm512_srli_epi32(wide, 1), negative));
}

GRADCOMP_AVX512 void zigzag_to_f32(const std::uint8_t* symbols, float unit, float* y,
                                   std::size_t n) {
  const __m512 u = _mm512_set1_ps(unit);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_mul_ps(u, zigzag_level16(symbols + i)));
  }
  kScalarKernels.zigzag_to_f32(symbols + i, unit, y + i, n - i);
}

GRADCOMP_AVX512 void zigzag_add(const std::uint8_t* symbols, float unit, float weight, float* acc,
                                std::size_t n) {
  const __m512 u = _mm512_set1_ps(unit);
  const __m512 w = _mm512_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    add_scaled(acc + i, w, _mm512_mul_ps(u, zigzag_level16(symbols + i)));
  }
  kScalarKernels.zigzag_add(symbols + i, unit, weight, acc + i, n - i);
}

GRADCOMP_AVX512 void flip_signs(const float* x, const std::uint32_t* words, float factor, float* y,
                                std::size_t n) {
  const __m512 f = _mm512_set1_ps(factor);
  const __m512 sign = _mm512_set1_ps(-0.0f);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Hardware prefetching stops at the end of a page.
    for (std::size_t line = 0; line < 2; ++line) prefetch_ahead(x + i + 16 * line);
    const std::uint32_t word = words[i / 32];
    const __m512 a = _mm512_mul_ps(f, _mm512_loadu_ps(x + i));
    const __m512 b = _mm512_mul_ps(f, _mm512_loadu_ps(x + i + 16));
    _mm512_storeu_ps(y + i, _mm512_mask_xor_ps(a, static_cast<__mmask16>(word), a, sign));
    _mm512_storeu_ps(y + i + 16,
                     _mm512_mask_xor_ps(b, static_cast<__mmask16>(word >> 16), b, sign));
  }
  kScalarKernels.flip_signs(x + i, words + i / 32, factor, y + i, n - i);
}

// Butterflies of the strides 1, 2, 4 and 8. Every lane adds itself, or its negative, to its
// partner. Multiplying by 1 or -1 is exact, so the fused operation rounds like an addition.
GRADCOMP_AVX512 inline __m512 lane_butterflies(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 minus = _mm512_set1_ps(-1.0f);
  x = _mm512_fmadd_ps(x, _mm512_mask_mov_ps(one, 0xAAAA, minus), _mm512_permute_ps(x, 0xB1));
  x = _mm512_fmadd_ps(x, _mm512_mask_mov_ps(one, 0xCCCC, minus), _mm512_permute_ps(x, 0x4E));
  x = _mm512_fmadd_ps(x, _mm512_mask_mov_ps(one, 0xF0F0, minus), _mm512_shuffle_f32x4(x, x, 0xB1));
  return _mm512_fmadd_ps(x, _mm512_mask_mov_ps(one, 0xFF00, minus),
                         _mm512_shuffle_f32x4(x, x, 0x4E));
}

GRADCOMP_AVX512 inline void butterfly(__m512& a, __m512& b) {
  const __m512 sum = _mm512_add_ps(a, b);
  b = _mm512_sub_ps(a, b);
  a = sum;
}

GRADCOMP_AVX512 inline void butterfly4(__m512& a, __m512& b, __m512& c, __m512& d) {
  butterfly(a, b);
  butterfly(c, d);
  butterfly(a, c);
  butterfly(b, d);
}

// Four levels, the lowest of this stride; with kLanes, first the levels within vectors.
template <bool kLanes>
GRADCOMP_AVX512 inline void hadamard16(float* x, std::size_t n, std::size_t stride) {
  for (std::size_t i = 0; i < n; i += 16 * stride) {
    for (std::size_t j = i; j < i + stride; j += 16) {
      float* const p = x + j;
      __m512 v0 = _mm512_loadu_ps(p + 0 * stride);
      __m512 v1 = _mm512_loadu_ps(p + 1 * stride);
      __m512 v2 = _mm512_loadu_ps(p + 2 * stride);
      __m512 v3 = _mm512_loadu_ps(p + 3 * stride);
      __m512 v4 = _mm512_loadu_ps(p + 4 * stride);
      __m512 v5 = _mm512_loadu_ps(p + 5 * stride);
      __m512 v6 = _mm512_loadu_ps(p + 6 * stride);
      __m512 v7 = _mm512_loadu_ps(p + 7 * stride);
      __m512 v8 = _mm512_loadu_ps(p + 8 * stride);
      __m512 v9 = _mm512_loadu_ps(p + 9 * stride);
      __m512 v10 = _mm512_loadu_ps(p + 10 * stride);
      __m512 v11 = _mm512_loadu_ps(p + 11 * stride);
      __m512 v12 = _mm512_loadu_ps(p + 12 * stride);
      __m512 v13 = _mm512_loadu_ps(p + 13 * stride);
      __m512 v14 = _mm512_loadu_ps(p + 14 * stride);
      __m512 v15 = _mm512_loadu_ps(p + 15 * stride);
      if (kLanes) {
        v0 = lane_butterflies(v0);
        v1 = lane_butterflies(v1);
        v2 = lane_butterflies(v2);
        v3 = lane_butterflies(v3);
        v4 = lane_butterflies(v4);
        v5 = lane_butterflies(v5);
        v6 = lane_butterflies(v6);
        v7 = lane_butterflies(v7);
        v8 = lane_butterflies(v8);
        v9 = lane_butterflies(v9);
        v10 = lane_butterflies(v10);
        v11 = lane_butterflies(v11);
        v12 = lane_butterflies(v12);
        v13 = lane_butterflies(v13);
        v14 = lane_butterflies(v14);
        v15 = lane_butterflies(v15);
      }
      butterfly4(v0, v1, v2, v3);
      butterfly4(v4, v5, v6, v7);
      butterfly4(v8, v9, v10, v11);
      butterfly4(v12, v13, v14, v15);
      butterfly4(v0, v4, v8, v12);
      butterfly4(v1, v5, v9, v13);
      butterfly4(v2, v6, v10, v14);
      butterfly4(v3, v7, v11, v15);
      _mm512_storeu_ps(p + 0 * stride, v0);
      _mm512_storeu_ps(p + 1 * stride, v1);
      _mm512_storeu_ps(p + 2 * stride, v2);
      _mm512_storeu_ps(p + 3 * stride, v3);
      _mm512_storeu_ps(p + 4 * stride, v4);
      _mm512_storeu_ps(p + 5 * stride, v5);
      _mm512_storeu_ps(p + 6 * stride, v6);
      _mm512_storeu_ps(p + 7 * stride, v7);
      _mm512_storeu_ps(p + 8 * stride, v8);
      _mm512_storeu_ps(p + 9 * stride, v9);
      _mm512_storeu_ps(p + 10 * stride, v10);
      _mm512_storeu_ps(p + 11 * stride, v11);
      _mm512_storeu_ps(p + 12 * stride, v12);
      _mm512_storeu_ps(p + 13 * stride, v13);
      _mm512_storeu_ps(p + 14 * stride, v14);
      _mm512_storeu_ps(p + 15 * stride, v15);
    }
  }
}

GRADCOMP_AVX512 void hadamard(float* x, unsigned log2) {
  if (log2 < 4) return kScalarKernels.hadamard(x, log2);
  const std::size_t n = std::size_t{1} << log2;
  std::size_t stride = 16;
  if (n >= 256) {
    hadamard16<true>(x, n, 16);
    stride = 256;
  } else {
    for (std::size_t i = 0; i < n; i += 16) {
      _mm512_storeu_ps(x + i, lane_butterflies(_mm512_loadu_ps(x + i)));
    }
  }
  for (; 16 * stride <= n; stride *= 16) hadamard16<false>(x, n, stride);
  for (; stride < n; stride *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * stride) {
      for (std::size_t j = i; j < i + stride; j += 16) {
        __m512 a = _mm512_loadu_ps(x + j);
        __m512 b = _mm512_loadu_ps(x + j + stride);
        butterfly(a, b);
        _mm512_storeu_ps(x + j, a);
        _mm512_storeu_ps(x + j + stride, b);
      }
    }
  }
}

GRADCOMP_AVX512 inline void store_symbols(std::uint8_t* out, __m512i symbols) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(symbols));
}

GRADCOMP_AVX512 void quantize_uniform(const float* x, float scale, float top,
                                      const std::uint32_t* noise, std::uint8_t* symbols,
                                      std::size_t n) {
  const __m512 s = _mm512_set1_ps(scale);
  const __m512 most = _mm512_set1_ps(top);
  const __m512 middle = _mm512_set1_ps(0.5f * top);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 at = _mm512_add_ps(_mm512_mul_ps(s, _mm512_loadu_ps(x + i)), middle);
    at = _mm512_min_ps(_mm512_max_ps(at, _mm512_setzero_ps()), most);
    if (noise == nullptr) {
      store_symbols(symbols + i, _mm512_cvtps_epi32(at));
    } else {
      const __m512i fraction = _mm512_srli_epi32(_mm512_loadu_si512(noise + i), 8);
      at = _mm512_add_ps(at, _mm512_mul_ps(_mm512_cvtepi32_ps(fraction), _mm512_set1_ps(0x1p-24f)));
      store_symbols(symbols + i, _mm512_cvttps_epi32(_mm512_min_ps(at, most)));
    }
  }
  kScalarKernels.quantize_uniform(x + i, scale, top, noise == nullptr ? nullptr : noise + i,
                                  symbols + i, n - i);
}

// The 16 partial sums of a run of terms.
struct TermSums {
  __m512d low, high;

  GRADCOMP_AVX512 void clear() {
    low = _mm512_setzero_pd();
    high = _mm512_setzero_pd();
  }

  GRADCOMP_AVX512 void add(__m512 terms) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(terms)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(terms, 1)));
  }

  GRADCOMP_AVX512 void store(PartialSums* sums) const {
    _mm512_storeu_pd(sums->partial, low);
    _mm512_storeu_pd(sums->partial + 8, high);
  }
};

// Up to four levels per sign: compares with every bound.
template <int kBounds>
struct FewLevels {
  __m512 positive;
  __m512 bounds[kBounds + 1];

  GRADCOMP_AVX512 void start(const Centroids& c) {
    positive = _mm512_loadu_ps(c.positive);
    for (int k = 0; k < kBounds; ++k) bounds[k] = _mm512_set1_ps(c.bounds[k]);
  }

  GRADCOMP_AVX512 __m512i level(__m512 magnitude) const {
    __m512i level = _mm512_setzero_si512();
    const __m512i one = _mm512_set1_epi32(1);
    for (int k = 0; k < kBounds; ++k) {
      level = _mm512_mask_add_epi32(level, _mm512_cmp_ps_mask(magnitude, bounds[k], _CMP_GT_OQ),
                                    level, one);
    }
    return level;
  }

  GRADCOMP_AVX512 __m512 centroid(__m512i level) const {
    return _mm512_permutexvar_ps(level, positive);
  }
};

// A table of kSize floats in registers, for kSize a power of two from 16 to 128. (Gathers take
// longer, on some processors far longer.)
template <unsigned kSize>
struct RegisterTable {
  __m512 part[kSize / 16];

  GRADCOMP_AVX512 void load(const float* table) {
    for (unsigned i = 0; i < kSize / 16; ++i) part[i] = _mm512_loadu_ps(table + 16 * i);
  }

  // Bits of `at` above an index are ignored.
  GRADCOMP_AVX512 __m512 operator[](__m512i at) const {
    if constexpr (kSize == 16) {
      return _mm512_permutexvar_ps(at, part[0]);
    } else {
      __m512 found[kSize / 32];
      for (unsigned i = 0; i < kSize / 32; ++i) {
        found[i] = _mm512_permutex2var_ps(part[2 * i], at, part[2 * i + 1]);
      }
      for (unsigned bit = 32; bit < kSize; bit *= 2) {
        const __mmask16 upper =
            _mm512_test_epi32_mask(at, _mm512_set1_epi32(static_cast<int>(bit)));
        for (unsigned i = 0; i < kSize / 32; i += bit / 16) {
          found[i] = _mm512_mask_blend_ps(upper, found[i], found[i + bit / 32]);
        }
      }
      return found[0];
    }
  }
};

// 2^kDepth levels per sign, 8 to 128: binary search.
template <unsigned kDepth>
struct ManyLevels {
  static constexpr unsigned kHalf = 1u << kDepth;

  __m512 upper[4];  // rows of at most 8 bounds
  RegisterTable<16> row16;
  RegisterTable<32> row32;
  RegisterTable<64> row64;
  RegisterTable < kHalf<16 ? 16 : kHalf> positive;

  GRADCOMP_AVX512 void start(const Centroids& c) {
    for (unsigned row = 0; row < 4 && row < kDepth; ++row) {
      upper[row] = _mm512_loadu_ps(c.tree + (1u << row));
    }
    if constexpr (kDepth > 4) row16.load(c.tree + 16);
    if constexpr (kDepth > 5) row32.load(c.tree + 32);
    if constexpr (kDepth > 6) row64.load(c.tree + 64);
    positive.load(c.positive);
  }

  GRADCOMP_AVX512 __m512i level(__m512 magnitude) const {
    __m512i at = _mm512_setzero_si512();
    for (unsigned row = 0; row < 4 && row < kDepth; ++row) {
      at = descend(at, magnitude, _mm512_permutexvar_ps(at, upper[row]));
    }
    if constexpr (kDepth > 4) at = descend(at, magnitude, row16[at]);
    if constexpr (kDepth > 5) at = descend(at, magnitude, row32[at]);
    if constexpr (kDepth > 6) at = descend(at, magnitude, row64[at]);
    return at;
  }

  GRADCOMP_AVX512 __m512 centroid(__m512i level) const { return positive[level]; }

 private:
  GRADCOMP_AVX512 static __m512i descend(__m512i at, __m512 magnitude, __m512 bound) {
    const __m512i below = _mm512_add_epi32(at, at);
    return _mm512_mask_add_epi32(below, _mm512_cmp_ps_mask(magnitude, bound, _CMP_GT_OQ), below,
                                 _mm512_set1_epi32(1));
  }
};

template <typename Levels>
GRADCOMP_AVX512 inline CentroidSums quantize_with(const float* x, float scale, const Centroids& c,
                                                  bool with_energy, std::uint8_t* symbols,
                                                  std::size_t n) {
  Levels levels;
  levels.start(c);
  const __m512 s = _mm512_set1_ps(scale);
  const __m512i flip_positive = _mm512_set1_epi32(static_cast<int>(c.half));
  const __m512i flip_negative = _mm512_set1_epi32(static_cast<int>(c.half - 1));
  TermSums dots, energies;
  dots.clear();
  energies.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 size = _mm512_castsi512_ps(magnitude(v));
    const __m512i level = levels.level(_mm512_mul_ps(size, s));
    const __m512 centroid = levels.centroid(level);
    const __m512i flip = _mm512_mask_mov_epi32(
        flip_positive, _mm512_movepi32_mask(_mm512_castps_si512(v)), flip_negative);
    store_symbols(symbols + i, _mm512_xor_si512(level, flip));
    dots.add(_mm512_mul_ps(size, centroid));
    if (with_energy) energies.add(_mm512_mul_ps(centroid, centroid));
  }
  PartialSums dot, energy;
  dots.store(&dot);
  energies.store(&energy);
  for (; i < n; ++i) {
    // i % 16 starts at 0: a run of one is element i of the sums.
    const CentroidSums one =
        kScalarKernels.quantize_centroids(x + i, scale, c, with_energy, symbols + i, 1);
    dot.add(i, one.dot);
    energy.add(i, one.energy);
  }
  return {dot.total(), energy.total()};
}

GRADCOMP_AVX512 CentroidSums quantize_centroids(const float* x, float scale, const Centroids& c,
                                                bool with_energy, std::uint8_t* symbols,
                                                std::size_t n) {
  switch (c.bits) {
    case 1:
      return quantize_with<FewLevels<0>>(x, scale, c, with_energy, symbols, n);
    case 2:
      return quantize_with<FewLevels<1>>(x, scale, c, with_energy, symbols, n);
    case 3:
      return quantize_with<FewLevels<3>>(x, scale, c, with_energy, symbols, n);
    case 4:
      return quantize_with<ManyLevels<3>>(x, scale, c, with_energy, symbols, n);
    case 5:
      return quantize_with<ManyLevels<4>>(x, scale, c, with_energy, symbols, n);
    case 6:
      return quantize_with<ManyLevels<5>>(x, scale, c, with_energy, symbols, n);
    case 7:
      return quantize_with<ManyLevels<6>>(x, scale, c, with_energy, symbols, n);
    default:
      return quantize_with<ManyLevels<7>>(x, scale, c, with_energy, symbols, n);
  }
}

GRADCOMP_AVX512 inline __m512i load_symbols(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

GRADCOMP_AVX512 void look_up(const std::uint8_t* symbols, const float* table, unsigned bits,
                             float* y, std::size_t n) {
  std::size_t i = 0;
  if (bits <= 4) {
    const __m512 values =
        _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << (1u << bits)) - 1), table);
    for (; i + 16 <= n; i += 16) {
      _mm512_storeu_ps(y + i, _mm512_permutexvar_ps(load_symbols(symbols + i), values));
    }
  } else {
    for (; i + 16 <= n; i += 16) {
      _mm512_storeu_ps(y + i, _mm512_i32gather_ps(load_symbols(symbols + i), table, 4));
    }
  }
  kScalarKernels.look_up(symbols + i, table, bits, y + i, n - i);
}

GRADCOMP_AVX512 FixedCounts fixed_encode(const float* x, float per_unit, const FixedOutput& out,
                                         std::size_t n) {
  const __m512i one_byte = _mm512_set1_epi32(128);
  const __m512i two_bytes = _mm512_set1_epi32(32768);
  FixedOutput at = out;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 size = _mm512_castsi512_ps(magnitude(v));
    const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(v), 31);
    // The minimum with a NaN is its second operand.
    const __m512i small = _mm512_cvtps_epi32(
        _mm512_min_ps(_mm512_mul_ps(size, _mm512_set1_ps(per_unit)), _mm512_set1_ps(128.0f)));
    const __m512i large = _mm512_cvtps_epi32(
        _mm512_min_ps(_mm512_mul_ps(size, _mm512_set1_ps(32768.0f)), _mm512_set1_ps(32768.0f)));
    const __mmask16 four = _mm512_cmpeq_epi32_mask(large, two_bytes);
    const __mmask16 two = _kandn_mask16(four, _mm512_cmpeq_epi32_mask(small, one_byte));
    const __mmask16 some = _mm512_test_epi32_mask(small, small);
    const __mmask16 one = _kandn_mask16(_kor_mask16(two, four), some);
    store(out.low + i / 8, static_cast<std::uint16_t>(_kor_mask16(one, four)));
    store(out.high + i / 8, static_cast<std::uint16_t>(_kor_mask16(two, four)));
    // The slack holds the lanes written beyond the kept elements.
    const __m512i byte = _mm512_or_si512(small, _mm512_slli_epi32(sign, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at.bytes),
                     _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(one, byte)));
    at.bytes += __builtin_popcount(one);
    const __m512i half = _mm512_or_si512(large, _mm512_slli_epi32(sign, 15));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at.halves),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(two, half)));
    at.halves += 2 * __builtin_popcount(two);
    _mm512_storeu_ps(at.words, _mm512_maskz_compress_ps(four, v));
    at.words += 4 * __builtin_popcount(four);
  }
  at.low += i / 8;
  at.high += i / 8;
  FixedCounts counts = kScalarKernels.fixed_encode(x + i, per_unit, at, n - i);
  counts.bytes += static_cast<std::size_t>(at.bytes - out.bytes);
  counts.halves += static_cast<std::size_t>(at.halves - out.halves) / 2;
  counts.words += static_cast<std::size_t>(at.words - out.words) / 4;
  return counts;
}

GRADCOMP_AVX512 void fixed_decode(const FixedInput& in, float unit, float* y, std::size_t n) {
  FixedInput at = in;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __mmask16 low = load<std::uint16_t>(in.low + i / 8);
    const __mmask16 high = load<std::uint16_t>(in.high + i / 8);
    const __mmask16 one = _kandn_mask16(high, low);
    const __mmask16 two = _kandn_mask16(low, high);
    const __mmask16 four = _kand_mask16(low, high);
    const __m512i byte = _mm512_maskz_expand_epi32(
        one, _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at.bytes))));
    at.bytes += __builtin_popcount(one);
    const __m512i half =
        _mm512_maskz_expand_epi32(two, _mm512_cvtepu16_epi32(load_u16x16(at.halves)));
    at.halves += 2 * __builtin_popcount(two);
    const __m512i word = _mm512_maskz_expand_epi32(four, _mm512_loadu_si512(at.words));
    at.words += 4 * __builtin_popcount(four);
    const __m512 small = _mm512_mul_ps(
        _mm512_set1_ps(unit), _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(0x7F))));
    const __m512 large =
        _mm512_mul_ps(_mm512_set1_ps(0x1p-15f),
                      _mm512_cvtepi32_ps(_mm512_and_si512(half, _mm512_set1_epi32(0x7FFF))));
    // Lanes of another width are 0, so all can be combined.
    const __m512i size = _mm512_castps_si512(_mm512_or_ps(small, large));
    const __m512i sign = _mm512_or_si512(_mm512_slli_epi32(_mm512_srli_epi32(byte, 7), 31),
                                         _mm512_slli_epi32(_mm512_srli_epi32(half, 15), 31));
    _mm512_storeu_si512(y + i, _mm512_or_si512(_mm512_or_si512(size, sign), word));
  }
  at.low += i / 8;
  at.high += i / 8;
  kScalarKernels.fixed_decode(at, unit, y + i, n - i);
}

GRADCOMP_AVX512 FixedCounts fixed_count(const std::uint8_t* low, const std::uint8_t* high,
                                        std::size_t n) {
  return count_tags(low, high, n);
}

constexpr auto crc32c = crc32c_avx512;

constexpr const CodingKernels* coding = &kAvx512CodingKernels;
constexpr const PolarKernels* polar = &kAvx512PolarKernels;
constexpr const LinalgKernels* linalg = &kAvx512LinalgKernels;

}  // namespace

const Kernels kAvx512Kernels = GRADCOMP_KERNEL_TABLE("avx512");

}  // namespace gradcomp

#endif
