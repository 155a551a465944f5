// Eigenvectors of small symmetric matrices.
#pragma once

#include <cstddef>
#include <vector>

namespace gradcomp {

// Eigenvalues (left on the diagonal of `a`, in no order) and eigenvectors (rows of `vectors`) of a
// symmetric n x n matrix, by Jacobi rotations. It needs only sums, products, quotients and square
// roots, so the bits are the same everywhere.
void eigen(std::vector<double>& a, std::size_t n, std::vector<double>* vectors);

}  // namespace gradcomp
