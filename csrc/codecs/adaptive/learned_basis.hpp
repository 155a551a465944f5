// What preset=basis keeps of a matrix: the directions in which rows and columns of past averages
// were largest. All ranks have the same averages, hence the same directions, so that a gradient may
// travel as seen from them: as Q_rows^T X Q_cols, where each Q is an orthonormal basis of the whole
// space that begins with these directions (and where the sign is the other one).
//
// Such a Q is I - Y T Y^T, with Y = V + E for the directions V and as many unit vectors E, and
// T = Y_1^-T for the first R elements Y_1 of each vector of Y. (Sun and Bischof: "A Basis-Kernel
// Representation of Orthogonal Matrices", SIAM J. Matrix Anal. Appl. 1995; the signs that make Y_1
// well conditioned: Ballard et al., "Reconstructing Householder Vectors from Tall-Skinny QR",
// 2015.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// A view of what is kept, in this order, for columns and then for rows.
struct SharedBasis {
  struct Side {
    const float* y = nullptr;  // rank x size
    const float* t = nullptr;  // rank x rank
    std::size_t size = 0;
    // Then how large each direction was: rank numbers, the largest first, above 0 once something
    // was learned.
  };
  std::size_t rank = 0;  // directions of each side; 0: nothing is kept, or nothing was learned yet
  Side of_cols;
  Side of_rows;
  std::uint32_t check = 0;  // CRC-32C of all that is kept

  static SharedBasis of(Span<const float> kept, std::size_t rows, std::size_t cols);
};

// How many numbers are kept of a matrix.
std::size_t shared_basis_size(std::size_t rows, std::size_t cols);

// Brings what is kept up to date with one more average; zeros stand for nothing yet. An average
// without any finite size leaves it alone.
Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> kept);

// The matrix as it is seen from a basis, in its place, and back.
void turn(const SharedBasis& basis, float* x);
void turn_back(const SharedBasis& basis, float* x);

}  // namespace gradcomp
