// Inner loops of products between a matrix and a few vectors. Matrices are row-major, `ld` elements
// from row to row; vectors of one factor lie one after the other, `stride` elements apart. All
// instruction sets give the same bits, except for the sign and payload of NaN. Buffers of one call
// do not overlap.
#pragma once

#include <cstddef>

namespace gradcomp {

// Destinations of the sums in outer().
struct OuterOutput {
  float* assigned;              // nullptr or: = sum
  float* added;                 // nullptr or: += sum
  float* subtracted;            // nullptr or: = from - sum
  const float* from = nullptr;  // nullptr: `subtracted` itself
  // Assign past the caches, which would otherwise read the old contents. `assigned` and each of its
  // rows must begin at a cache line.
  bool uncached = false;
};

struct LinalgKernels {
  // p[c][i] = sum over j of m[i][j] * q[c][j]. In float32: element j goes to partial sum j % 16,
  // and the 16 are added pairwise (j and j + 8, then j and j + 4, ...).
  void (*multiply)(const float* m, std::size_t ld, std::size_t rows, std::size_t cols,
                   const float* q, std::size_t q_stride, std::size_t rank, float* p,
                   std::size_t p_stride);
  // q[c][j] += sum over i of m[i][j] * p[c][i], row after row.
  void (*multiply_transposed)(const float* m, std::size_t ld, std::size_t rows, std::size_t cols,
                              const float* p, std::size_t p_stride, std::size_t rank, float* q,
                              std::size_t q_stride);
  // For every i and j: the sum over ascending c of p[c][i] * q[c][j]. Rows of the outputs are `ld`
  // elements apart; rank is at least 1.
  void (*outer)(const float* p, std::size_t p_stride, const float* q, std::size_t q_stride,
                std::size_t rank, std::size_t rows, std::size_t cols, const OuterOutput& out,
                std::size_t ld);
};

extern const LinalgKernels kScalarLinalgKernels;
#if defined(__x86_64__)
extern const LinalgKernels kAvx2LinalgKernels;
extern const LinalgKernels kAvx512LinalgKernels;
#endif

}  // namespace gradcomp
