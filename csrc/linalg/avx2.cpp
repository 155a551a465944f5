#if defined(__x86_64__)

#include <cstddef>
#include <cstring>

#include "kernels/linalg.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL GRADCOMP_AVX2
#define GRADCOMP_WIDTH 8
#define GRADCOMP_ROWS 2
#define GRADCOMP_COLUMNS 2
#define GRADCOMP_BLOCK 4
#define GRADCOMP_VECTORS 2
#define GRADCOMP_STREAM _mm256_stream_ps
#define GRADCOMP_FENCE _mm_sfence
#include "linalg/loops.hpp"

}  // namespace

const LinalgKernels kAvx2LinalgKernels = {multiply, multiply_transposed, outer};

}  // namespace gradcomp

#endif
