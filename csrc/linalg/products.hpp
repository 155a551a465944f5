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

// m += grad, unless that is nullptr; then p = m q. Returns whether all sums m + grad are finite
// (true without grad).
bool multiply(const Matrix& m, const float* grad, const float* q, std::size_t rank, float* p);
// The same, with q = m^T p.
bool multiply_transposed(const Matrix& m, const float* grad, const float* p, std::size_t rank,
                         float* q);
// LinalgKernels::outer() for a whole matrix.
void outer(const float* p, const float* q, std::size_t rank, std::size_t rows, std::size_t cols,
           const OuterOutput& out);

}  // namespace gradcomp
