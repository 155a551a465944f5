// Half-integer lattice of polar_ec, one element at a time: reference for all levels, which also use
// it for the ends of runs. docs/wire-format.md#polar_ec is the norm.
//
// The points are +-(k + 1/2) for k = 0, 1, ..., in steps. A bit selects one half of them: 1/2,
// -3/2, 5/2, ... for 0, and their negatives for 1. The number k is the index of the point.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/polar.hpp"

namespace gradcomp {

inline std::int8_t lattice_llr(const LatticeRule& rule, int magnitude) {
  // From 2 steps on, LLRs repeat every 2 steps.
  const int folded = std::min(magnitude, (magnitude & 31) | 32);
  return rule.llr[folded];
}

// Distance in pairs of steps (see LatticeRule) and index of the point nearest to a magnitude, in
// the half with 1/2 and its sign or, with `other`, in the other half.
inline int lattice_pairs(const LatticeRule& rule, int magnitude, bool other) {
  return (magnitude + (other ? rule.other : rule.same)) >> 5;
}
inline int lattice_index(int pairs, bool other) { return std::max(2 * pairs - (other ? 1 : 0), 0); }

// Writes the places and LLRs of n elements; returns the largest magnitude so far.
inline std::uint32_t finish_places(const float* x, const std::uint64_t* mask, float scale,
                                   const LatticeRule& rule, std::int16_t* places, std::int8_t* llr,
                                   std::size_t n, std::uint32_t largest) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    largest = std::max(largest, bits & 0x7FFFFFFFu);
    const float scaled = std::fabs(x[i]) * scale;
    const int magnitude = static_cast<int>(scaled < kLatticeTop ? scaled : kLatticeTop);
    const int ratio = lattice_llr(rule, magnitude);
    const bool negative = bits >> 31 != 0;
    places[i] = static_cast<std::int16_t>(negative ? ~magnitude : magnitude);
    const bool flipped = (mask[i / kLanes] >> (i % kLanes) & 1) != 0;
    llr[i] = static_cast<std::int8_t>(negative != flipped ? -ratio : ratio);
  }
  return largest;
}

inline LatticeSums finish_indices(const std::int16_t* places, const std::uint64_t* bits,
                                  const LatticeRule& rule, std::uint8_t* indices, std::size_t n) {
  LatticeSums sums{0, 0};
  for (std::size_t i = 0; i < n; ++i) {
    const bool negative = places[i] < 0;
    const int magnitude = negative ? ~places[i] : places[i];
    // Mirrored to a nonnegative element: whether the point is in the other half.
    const bool other = ((bits[i / kLanes] >> (i % kLanes) & 1) != 0) != negative;
    const int pairs = lattice_pairs(rule, magnitude, other);
    const int twice = 4 * pairs + (other ? -1 : 1);  // the point
    indices[i] = static_cast<std::uint8_t>(lattice_index(pairs, other));
    sums.product += (2 * magnitude + 1) * twice;
    sums.energy += twice * twice;
  }
  return sums;
}

inline void finish_points(const std::uint8_t* indices, const std::uint64_t* bits, float scale,
                          float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float point = scale * (static_cast<float>(indices[i]) + 0.5f);
    const bool negative = ((bits[i / kLanes] >> (i % kLanes) ^ indices[i]) & 1) != 0;
    y[i] = negative ? -point : point;
  }
}

}  // namespace gradcomp
