#include <cstddef>
#include <cstring>

#include "kernels/linalg.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL
#define GRADCOMP_WIDTH 4
#define GRADCOMP_ROWS 1
#define GRADCOMP_COLUMNS 2
#define GRADCOMP_BLOCK 2
#define GRADCOMP_VECTORS 4
#define GRADCOMP_STREAM(x, v) store(v, x)
#define GRADCOMP_FENCE()
#include "linalg/loops.hpp"

}  // namespace

const LinalgKernels kScalarLinalgKernels = {multiply, multiply_transposed, outer};

}  // namespace gradcomp
