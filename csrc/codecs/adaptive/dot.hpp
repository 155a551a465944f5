// Small helpers of the low-rank part.
#pragma once

#include <cstddef>

#include "linalg/products.hpp"

namespace gradcomp {

// A matrix for products that only read it.
inline Matrix read_only(const float* x, std::size_t rows, std::size_t cols) {
  return {const_cast<float*>(x), rows, cols};
}

// The dot product, summed in double.
inline double dot(const float* x, const float* y, std::size_t n) {
  constexpr std::size_t kParts = 8;  // sums side by side, so that the loop can be vectorised
  double sums[kParts] = {};
  std::size_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (std::size_t j = 0; j < kParts; ++j) {
      sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace gradcomp
