#if defined(__x86_64__)

#include <cstddef>
#include <cstring>

#include "kernels/linalg.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

GRADCOMP_AVX2 inline __m256 load_masked(const float* x, std::size_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane));
}

// As in avx512.cpp: at distance 8, then 4, 2 and 1. p[c][r] is the sum of sums[r][c].
template <typename Vector>
GRADCOMP_AVX2 inline void add_up_tile(const Vector (&sums)[2][2][2], float* p,
                                      std::size_t p_stride) {
  __m256 rows[2];
  for (std::size_t r = 0; r < 2; ++r) {
    const __m256 a = sums[r][0][0] + sums[r][0][1];
    const __m256 b = sums[r][1][0] + sums[r][1][1];
    rows[r] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(rows[0], rows[1], 0x44),
                                     _mm256_shuffle_ps(rows[0], rows[1], 0xEE));
  const __m256 all =
      _mm256_add_ps(_mm256_shuffle_ps(pairs, pairs, 0x88), _mm256_shuffle_ps(pairs, pairs, 0xDD));
  _mm_storel_pi(reinterpret_cast<__m64*>(p), _mm256_castps256_ps128(all));
  _mm_storel_pi(reinterpret_cast<__m64*>(p + p_stride), _mm256_extractf128_ps(all, 1));
}

#define GRADCOMP_LEVEL GRADCOMP_AVX2
#define GRADCOMP_WIDTH 8
#define GRADCOMP_ROWS 2
#define GRADCOMP_COLUMNS 2
#define GRADCOMP_BLOCK 4
#define GRADCOMP_VECTORS 2
#define GRADCOMP_STREAM _mm256_stream_ps
#define GRADCOMP_FENCE _mm_sfence
#define GRADCOMP_LOAD_FIRST load_masked
#define GRADCOMP_ADD_UP add_up_tile
#include "linalg/loops.hpp"

}  // namespace

const LinalgKernels kAvx2LinalgKernels = {multiply, multiply_transposed, outer};

}  // namespace gradcomp

#endif
