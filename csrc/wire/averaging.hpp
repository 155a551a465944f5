// Averages of frames other than their plain mean: over senders, and with clipped norms.
#pragma once

#include <cstdint>

#include "base/span.hpp"

namespace gradcomp {

// The factor of each of the norms: those above the median are scaled down to it. With an even
// number of norms, the median is the lower one of the middle two. NaN is the largest norm, and is
// not scaled.
void median_factors(Span<const double> norms, Span<double> factors);

// acc[i] /= counts[i] where counts[i] is above 1.
void divide_by_counts(Span<const std::uint16_t> counts, Span<float> acc);

}  // namespace gradcomp
