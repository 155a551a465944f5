#if defined(__x86_64__)

#include <cstddef>
#include <cstring>

#include "kernels/linalg.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

GRADCOMP_AVX512 inline __m512 load_masked(const float* x, std::size_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), x);
}

// In each vector, the sums of its lower and its upper half: a's before b's.
GRADCOMP_AVX512 inline __m512 add_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
// The same in each 128 bits.
GRADCOMP_AVX512 inline __m512 add_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
}

// Adds the parts of each vector of 16 at distance 8, then 4, 2 and 1, as multiply() must. Each step
// joins two vectors: it adds their lower and their upper halves. p[c][r] is the sum of sums[r][c].
template <typename Vector>
GRADCOMP_AVX512 inline void add_up_tile(const Vector (&sums)[4][4][1], float* p,
                                        std::size_t p_stride) {
  __m512 rows[4];
#pragma GCC unroll 4
  for (std::size_t r = 0; r < 4; ++r) {
    const __m512 first = add_halves(sums[r][0][0], sums[r][1][0]);
    const __m512 last = add_halves(sums[r][2][0], sums[r][3][0]);
    rows[r] = _mm512_add_ps(_mm512_shuffle_f32x4(first, last, 0x88),
                            _mm512_shuffle_f32x4(first, last, 0xDD));
  }
  const __m512 first = add_pairs(rows[0], rows[1]);
  const __m512 last = add_pairs(rows[2], rows[3]);
  const __m512 all =
      _mm512_add_ps(_mm512_shuffle_ps(first, last, 0x88), _mm512_shuffle_ps(first, last, 0xDD));
  _mm_storeu_ps(p, _mm512_castps512_ps128(all));
  _mm_storeu_ps(p + p_stride, _mm512_extractf32x4_ps(all, 1));
  _mm_storeu_ps(p + 2 * p_stride, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(p + 3 * p_stride, _mm512_extractf32x4_ps(all, 3));
}

#define GRADCOMP_LEVEL GRADCOMP_AVX512
#define GRADCOMP_WIDTH 16
#define GRADCOMP_ROWS 4
#define GRADCOMP_COLUMNS 4
#define GRADCOMP_BLOCK 8
#define GRADCOMP_VECTORS 2
#define GRADCOMP_STREAM _mm512_stream_ps
#define GRADCOMP_FENCE _mm_sfence
#define GRADCOMP_LOAD_FIRST load_masked
#define GRADCOMP_ADD_UP add_up_tile
#include "linalg/loops.hpp"

}  // namespace

const LinalgKernels kAvx512LinalgKernels = {multiply, multiply_transposed, outer};

}  // namespace gradcomp

#endif
