// The part of a matrix that a few pairs of vectors make up: X = P V + E, with P [rows x rank] and
// V [rank x cols] in whole multiples of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// The most pairs that are sent.
inline constexpr std::size_t kMaxAdaptiveRank = 16;

// Some rows of a matrix, evenly spaced, and the directions in which they are largest.
struct Basis {
  std::size_t rows = 0;  // those taken
  std::size_t cols = 0;
  std::vector<float> x;  // rows x cols
  // As many others, where not all are taken: what the directions are worth shows on rows that did
  // not make them.
  std::vector<float> others;
  const std::vector<float>& test() const { return others.empty() ? x : others; }
  std::size_t rank = 0;
  std::vector<float> v;         // rank x cols, orthonormal
  std::vector<double> squares;  // how much each direction has of them, descending
};

// `taken` whole rows, evenly spaced, from row `at` / (2 taken) of all on.
void take_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t taken,
               std::size_t at, std::vector<float>* result);

// By subspace iteration from a fixed start, with at most `rank` directions and about `sample`
// elements.
Status find_basis(const float* x, std::size_t rows, std::size_t cols, std::size_t rank,
                  std::size_t sample, Scratch& scratch, Basis* basis);

// A factor in whole multiples of a step: rank x size. Of each vector's numbers, the lower `shift`
// bits travel as they are: number = high * 2^shift + low - half, with half = 2^(shift - 1), or 0
// without low bits.
struct Factor {
  std::size_t size = 0;
  std::size_t rank = 0;
  std::vector<float> high;         // whole numbers
  std::vector<std::uint16_t> low;  // rank x size
  std::uint8_t shift[kMaxAdaptiveRank] = {};
  float step[kMaxAdaptiveRank] = {};
  std::vector<float> values;  // number * step

  std::size_t low_bits() const;
};
inline constexpr unsigned kMaxFactorShift = 15;

// number * step of a factor
inline float factor_value(std::int32_t high, std::uint32_t low, unsigned shift, float step) {
  const std::int32_t half = shift == 0 ? 0 : std::int32_t{1} << (shift - 1);
  const std::int64_t number =
      high * (std::int64_t{1} << shift) + static_cast<std::int32_t>(low) - half;
  return static_cast<float>(number) * step;
}

struct LowRank {
  std::size_t rank = 0;
  Factor p;  // for rows
  Factor v;  // for columns
};

// The upper half of a float32, rounded down in magnitude: what a step has on the wire.
float short_float(double x);

// The pairs of the basis' first `rank` directions for the rows of x, rounded with this step: that
// of P, and of V as seen in x.
void make_low_rank(const Basis& basis, std::size_t rank, const float* x, std::size_t rows,
                   float step, LowRank* result);

// e = x - P V
void subtract_low_rank(const LowRank& low_rank, const float* x, std::size_t rows, float* e);

}  // namespace gradcomp
