// State of preset=basis: the directions in which the rows and columns of past averages were
// largest. All ranks have the same averages, and therefore the same directions.
//
// A gradient X may then be sent "turned", as B = Q_rows^T X Q_cols. Each Q is an orthonormal basis
// of the whole space that begins with these directions, up to their signs: Q = I - Y T Y^T. Here
// Y = V + E has the R directions V and the first R unit vectors E, and T = Y_1^-T for the first R
// elements Y_1 of each vector of Y.
//
// Sun and Bischof: "A Basis-Kernel Representation of Orthogonal Matrices", SIAM J. Matrix Anal.
// Appl. 1995. The signs make Y_1 well conditioned, as in Ballard et al.: "Reconstructing
// Householder Vectors from Tall-Skinny QR", 2015.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// A view of BucketCall::basis, which has for the columns and then for the rows: y, t and the sizes
// of the directions (rank numbers, descending; above 0 once something was learned).
struct LearnedBasis {
  struct Side {
    const float* y = nullptr;  // rank x size
    const float* t = nullptr;  // rank x rank
    std::size_t size = 0;
  };
  std::size_t rank = 0;  // directions of each side; 0: no basis, or nothing learned yet
  Side of_cols;
  Side of_rows;
  std::uint32_t check = 0;  // CRC-32C of all numbers

  static LearnedBasis of(Span<const float> numbers, std::size_t rows, std::size_t cols);
};

// BucketCodec::basis_size() of a matrix; 0: it gets no basis.
std::size_t learned_basis_size(std::size_t rows, std::size_t cols);

// Updates the numbers of a basis (zeros: nothing learned yet) with an average [rows x cols]. They
// do not change if its largest magnitude is not in [2^-40, 2^40]. docs/adaptive.md#preset-basis
// describes the method.
Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> numbers);

// x = Q_rows^T x Q_cols, in place, and back.
void turn(const LearnedBasis& basis, float* x);
void turn_back(const LearnedBasis& basis, float* x);

}  // namespace gradcomp
