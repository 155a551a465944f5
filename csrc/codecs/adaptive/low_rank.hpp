// The low-rank part of a matrix: X = P V + E, with P [rows x rank] and V [rank x cols] in integer
// multiples of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/adaptive/sampled_rows.hpp"

namespace gradcomp {

// The largest rank of a payload.
inline constexpr std::size_t kMaxAdaptiveRank = 16;

// V or the transpose of P: `rank` vectors of `size` numbers, each a multiple of its vector's step.
// The `shift` low bits of a number travel uncoded: number = high * 2^shift + low - half, with half
// = 2^(shift - 1), or 0 for shift = 0.
struct Factor {
  std::size_t size = 0;
  std::size_t rank = 0;
  std::vector<float> high;         // whole numbers
  std::vector<std::uint16_t> low;  // rank x size
  std::uint8_t shift[kMaxAdaptiveRank] = {};
  float step[kMaxAdaptiveRank] = {};
  std::vector<float> values;  // number * step

  // Low bits of all numbers.
  std::size_t low_bits() const;
};
inline constexpr unsigned kMaxFactorShift = 15;

// number * step
inline float factor_value(std::int32_t high, std::uint32_t low, unsigned shift, float step) {
  const std::int32_t half = shift == 0 ? 0 : std::int32_t{1} << (shift - 1);
  const std::int64_t number =
      high * (std::int64_t{1} << shift) + static_cast<std::int32_t>(low) - half;
  return static_cast<float>(number) * step;
}

struct LowRank {
  std::size_t rank = 0;
  Factor p;  // of rows
  Factor v;  // of columns

  std::size_t low_bits() const;
};

// The upper half of a float32, rounded towards 0: a step as it is sent.
float short_float(double x);

// Fits P and V to x, from the first `rank` directions of the sample, and rounds them. `step` is
// that of P; the steps of V are such that both factors cause about the same error in x.
void make_low_rank(const SampledRows& sampled, std::size_t rank, const float* x, std::size_t rows,
                   float step, LowRank* result);

// e = x - P V
void subtract_low_rank(const LowRank& low_rank, const float* x, std::size_t rows, float* e);

}  // namespace gradcomp
