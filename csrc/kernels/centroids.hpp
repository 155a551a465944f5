// Quantizer with 2^bits arbitrary levels, symmetric around 0.
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
  // Cells of width 1 / kCellsPerUnit hold at most one bound each, so a search takes two look-ups.
  alignas(64) std::uint32_t cell_level[kCells];  // level of the lower end of the cell
  alignas(64) float cell_bound[kCells];          // the bound in the cell, or Inf
  // Bounds in the order of a binary search: the middle one at 1; after the one at i, the next one
  // is at 2 i for smaller magnitudes, else at 2 i + 1.
  alignas(64) float tree[kMaxHalf];

  // `ascending` has 2^(bits - 1) elements; neighbouring bounds are at least a cell apart.
  Centroids(unsigned bits, Span<const float> ascending);

  // Number of bounds below a magnitude.
  std::uint32_t level(float magnitude) const noexcept {
    const float at = magnitude * kCellsPerUnit;
    const std::size_t cell = at < static_cast<float>(kCells - 1)
                                 ? static_cast<std::size_t>(static_cast<std::int32_t>(at))
                                 : kCells - 1;
    return cell_level[cell] + (magnitude > cell_bound[cell] ? 1 : 0);
  }
};

// Sums that determine the scale of a quantized run. Terms are products in float32.
struct CentroidSums {
  double dot;     // of the elements and their centroids
  double energy;  // of the centroids
};

}  // namespace gradcomp
