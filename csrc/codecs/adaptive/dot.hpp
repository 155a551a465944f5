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
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

}  // namespace gradcomp
