#if defined(__x86_64__)

#include <cstddef>
#include <cstring>

#include "kernels/linalg.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL GRADCOMP_AVX512
#define GRADCOMP_WIDTH 16
#define GRADCOMP_ROWS 4
#define GRADCOMP_COLUMNS 4
#define GRADCOMP_BLOCK 8
#define GRADCOMP_VECTORS 2
#define GRADCOMP_STREAM _mm512_stream_ps
#define GRADCOMP_FENCE _mm_sfence
#include "linalg/loops.hpp"

}  // namespace

const LinalgKernels kAvx512LinalgKernels = {multiply, multiply_transposed, outer};

}  // namespace gradcomp

#endif
