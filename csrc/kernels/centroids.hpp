// A quantizer with any 2^bits levels that mirror each other around 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"

namespace gradcomp {

struct Centroids {
  static constexpr std::size_t kMaxHalf = 128;
  static constexpr std::size_t kCells = 512;
  static constexpr float kCellsPerUnit = 64;

  unsigned bits;
  std::uint32_t half;  // levels of one sign
  alignas(64) float positive[kMaxHalf];
  alignas(64) float bounds[kMaxHalf];  // between positive[i] and positive[i + 1]: half - 1 of them
  // Cells of 1 / kCellsPerUnit hold at most one bound each, which makes a search two look-ups.
  alignas(64) std::uint32_t cell_level[kCells];  // level of the lower end of the cell
  alignas(64) float cell_bound[kCells];          // the bound in the cell, or Inf
  // The bounds as a binary search meets them: the middle one at 1, and below the one at i those
  // that come next at 2 i (for smaller magnitudes) and 2 i + 1.
  alignas(64) float tree[kMaxHalf];

  // `ascending` has 2^(bits - 1) elements, neighbouring bounds at least a cell apart.
  Centroids(unsigned bits, Span<const float> ascending);

  // The number of bounds below a magnitude.
  std::uint32_t level(float magnitude) const noexcept {
    const float at = magnitude * kCellsPerUnit;
    const std::size_t cell = at < static_cast<float>(kCells - 1)
                                 ? static_cast<std::size_t>(static_cast<std::int32_t>(at))
                                 : kCells - 1;
    return cell_level[cell] + (magnitude > cell_bound[cell] ? 1 : 0);
  }
};

// What the scale of a quantized run follows from. Terms are products in float32.
struct CentroidSums {
  double dot;     // of the elements and their centroids
  double energy;  // of the centroids
};

}  // namespace gradcomp
