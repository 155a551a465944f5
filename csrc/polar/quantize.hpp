// End of PolarKernels::quantize, in the same order on every level.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/polar.hpp"

namespace gradcomp {

// Quantizes the elements from `begin` on, a multiple of 16; then adds all sums.
inline float finish_quantize(const float* x, const std::uint64_t* mask, float scale,
                             std::int8_t* llr, std::size_t begin, std::size_t n, float* partial) {
  for (std::size_t i = begin; i < n; ++i) {
    const float scaled = x[i] * scale;
    partial[i % 16] += scaled * scaled;
    const float below = scaled < 127.0f ? scaled : 127.0f;
    const long level = std::lrint(below > -127.0f ? below : -127.0f);
    const bool flipped = (mask[i / kLanes] >> (i % kLanes) & 1) != 0;
    llr[i] = static_cast<std::int8_t>(flipped ? -level : level);
  }
  float sum = 0;
  for (std::size_t i = 0; i < 16; ++i) sum += partial[i];
  return sum;
}

}  // namespace gradcomp
