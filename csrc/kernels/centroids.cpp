#include "kernels/centroids.hpp"

#include <limits>

namespace gradcomp {

Centroids::Centroids(unsigned bits_in, Span<const float> ascending)
    : bits(bits_in), half(static_cast<std::uint32_t>(ascending.size())) {
  for (std::size_t i = 0; i < kMaxHalf; ++i) {
    const bool bound_exists = i + 1 < half;
    positive[i] = i < half ? ascending[i] : 0.0f;
    bounds[i] = bound_exists ? 0.5f * (ascending[i] + ascending[i + 1])
                             : std::numeric_limits<float>::infinity();
  }
  for (std::size_t i = 0; i < kMaxHalf; ++i) tree[i] = 0.0f;
  for (std::size_t row = 1; row < half; row *= 2) {
    const std::size_t step = half / row;
    for (std::size_t i = 0; i < row; ++i) tree[row + i] = bounds[step * i + step / 2 - 1];
  }
  std::uint32_t below = 0;
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    cell_level[cell] = below;
    cell_bound[cell] = bounds[below];
    const float end = static_cast<float>(cell + 1) / kCellsPerUnit;
    if (bounds[below] < end) ++below;
  }
}

}  // namespace gradcomp
