// The summation order that every level follows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/contexts.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

struct PartialSums {
  double partial[16] = {};

  void add(std::size_t i, double value) noexcept { partial[i % 16] += value; }

  double total() const noexcept {
    double sums[16];
    for (std::size_t j = 0; j < 16; ++j) sums[j] = partial[j];
    for (std::size_t width = 8; width > 0; width /= 2) {
      for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
    }
    return sums[0];
  }
};

// Contribution of an element to Kernels::level_error().
inline float squared_level_error(float x, std::uint8_t symbol, float inverse, float bias) noexcept {
  const float size = std::fabs(x) * inverse;
  const int found = (symbol % static_cast<int>(kClassSymbols) + 1) / 2;
  const int top = static_cast<int>(kTopMagnitude);
  const int level = found < top ? found : std::max(static_cast<int>(size + bias), top);
  const float off = size - static_cast<float>(level);
  return off * off;
}

// Contribution of an element to SignedSums. Comparisons are as in minpd and maxpd, which propagate
// NaN.
inline SignedSums split_by_sign(float x) noexcept {
  const auto wide = static_cast<double>(x);
  return {0.0 < wide ? 0.0 : wide, 0.0 > wide ? 0.0 : wide};
}

}  // namespace gradcomp
