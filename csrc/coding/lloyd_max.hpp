// Optimal quantizers of a standard normal value (Lloyd 1982; Max 1960).
#pragma once

#include "base/span.hpp"

namespace gradcomp {

// Positive centroids of the quantizer with 2^bits levels, ascending; the others mirror them. 1 <=
// bits <= 8. scripts/golden/lloyd_max.py computes them.
Span<const float> lloyd_max_centroids(unsigned bits);

}  // namespace gradcomp
