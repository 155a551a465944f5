// Orthonormal bases of a few long vectors. One thread, no SIMD of its own: the same bits
// everywhere.
#pragma once

#include <cstddef>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

enum class Orthonormalization {
  // Modified Gram-Schmidt, repeated if the first pass removed most of a vector (Giraud, Langou,
  // Rozloznik: "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005).
  kGramSchmidt,
  kHouseholder,
  // Cholesky QR, twice (Fukaya et al.: "CholeskyQR2", 2014); gram_schmidt if the vectors are too
  // close to dependent.
  kCholesky,
};

// A vector counts as dependent on those before it if at most this part of its norm is left without
// its projections on them.
inline constexpr double kDependent = 1e-7;

// Orthonormalizes `rank` vectors of n elements, stored one after the other: the first k span the
// same space as before. Computed in float64. Elements that are not finite count as 0. A vector that
// depends on those before it, such as zero, is replaced by a unit vector without its projections on
// them, so the result is always orthonormal. rank must be in [1, n].
Status orthonormalize(Span<float> vectors, std::size_t rank, Orthonormalization how,
                      Scratch& scratch);

// Divides each of `rank` vectors by its norm, which is computed in float64. Elements that are not
// finite count as 0. A vector of zeros is replaced by a unit vector.
Status normalize(Span<float> vectors, std::size_t rank, Scratch& scratch);

}  // namespace gradcomp
