// Orthonormal bases of a few long vectors. One thread, no SIMD of its own: the same bits
// everywhere.
#pragma once

#include <cstddef>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

enum class Orthonormalization {
  // Modified Gram-Schmidt, a second time where the first took most of a vector (Giraud, Langou,
  // Rozloznik: "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005).
  kGramSchmidt,
  kHouseholder,
  // Cholesky QR, twice (Fukaya et al.: "CholeskyQR2", 2014); gram_schmidt where the vectors are too
  // close to dependent.
  kCholesky,
};

// A vector of which not more than this part is left, once what it has of the vectors before it is
// taken away, counts as dependent on them.
inline constexpr double kDependent = 1e-7;

// Turns `rank` vectors of n elements, one after the other, into orthonormal ones: the first k span
// what the first k spanned. Computed in float64. Elements that are not finite count as 0. A vector
// that depends on those before it (zero, for one) is replaced by what is left of the unit vector
// which has most left; so the result is always orthonormal. rank must be in [1, n].
Status orthonormalize(Span<float> vectors, std::size_t rank, Orthonormalization how,
                      Scratch& scratch);

}  // namespace gradcomp
