// Products between a large row-major matrix and a few vectors, in float32. The same bits at any
// thread count and on any instruction set.
#pragma once

#include <cstddef>

#include "kernels/linalg.hpp"

namespace gradcomp {

struct Matrix {
  float* data;
  std::size_t rows;
  std::size_t cols;

  std::size_t size() const noexcept { return rows * cols; }
};

// The factors p (for rows) and q (for columns) have `rank` vectors each, one after the other.

// Error feedback of a matrix: m = beta * m + grad. Nothing without a gradient.
struct MatrixFeedback {
  const float* grad = nullptr;
  float beta = 1;
};

// Applies the feedback to m; then p = m q. Returns whether all corrected elements are finite (true
// without a gradient).
bool multiply(const Matrix& m, const MatrixFeedback& feedback, const float* q, std::size_t rank,
              float* p);
// The same, with q = m^T p.
bool multiply_transposed(const Matrix& m, const MatrixFeedback& feedback, const float* p,
                         std::size_t rank, float* q);
// LinalgKernels::outer() for a whole matrix.
void outer(const float* p, const float* q, std::size_t rank, std::size_t rows, std::size_t cols,
           const OuterOutput& out);

}  // namespace gradcomp
