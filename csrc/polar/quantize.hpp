// End of PolarKernels::quantize, in the same order on every level.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gradcomp {

// Quantizes the last n elements, of which the first belongs to partial sum 0; then adds all sums.
inline float finish_quantize(const float* x, float scale, std::int8_t* llr, std::size_t n,
                             float* partial) {
  for (std::size_t i = 0; i < n; ++i) {
    const float scaled = x[i] * scale;
    partial[i % 16] += scaled * scaled;
    const float below = scaled < 127.0f ? scaled : 127.0f;
    llr[i] = static_cast<std::int8_t>(std::lrint(below > -127.0f ? below : -127.0f));
  }
  float sum = 0;
  for (std::size_t i = 0; i < 16; ++i) sum += partial[i];
  return sum;
}

}  // namespace gradcomp
