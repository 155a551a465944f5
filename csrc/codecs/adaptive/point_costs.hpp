// Costs by which the encoder of coder=polar chooses between levels and points, and among points.
// Costs are the squared error plus kBitWorth for each bit, in squares of the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/adaptive/frequency_tables.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {

// The level of a magnitude; for the top magnitude, the one nearest to an element of `size` steps.
inline float level_near(unsigned magnitude, float size) {
  return magnitude < kTopMagnitude ? static_cast<float>(magnitude) : std::floor(size + 0.5f);
}

// Costs of an element as a level, given the tables of levels.
struct LevelCosts {
  float bits[kClasses][kTopMagnitude + 1];

  explicit LevelCosts(const FrequencyTables& tables);

  // Cost of an element of `size` steps, with a class and its symbol in that class.
  float of(unsigned of_class, unsigned symbol, float size) const {
    const unsigned magnitude = (symbol + 1) / 2;
    const float off = size - level_near(magnitude, size);
    return off * off + bits[of_class][magnitude];
  }
};

// Costs of an element as a point, and the rules that choose points, given the tables of indices.
struct PointRules {
  LatticeRule of[kClasses];
  // Expected cost of an element as a point, by its place (place_of()); all larger places cost about
  // as much as the last.
  static constexpr int kCosts = 128;
  float cost[kClasses][kCosts];

  explicit PointRules(const FrequencyTables& indices);
};

// The magnitude in 16ths of the points' distance, where `scale` is 16 divided by that distance.
inline int place_of(float x, float scale) {
  const float scaled = std::fabs(x) * scale;
  return static_cast<int>(scaled < kLatticeTop ? scaled : kLatticeTop);
}

// Offsets of elements from their reconstruction points.
struct Offsets {
  double sum = 0;
  double squares = 0;
  double count = 0;

  void add(double offset) {
    sum += offset;
    squares += offset * offset;
    ++count;
  }
  void add(const Offsets& others) {
    sum += others.sum;
    squares += others.squares;
    count += others.count;
  }
  // The squared error that is left when the reconstruction point moves by the mean.
  double error() const { return count == 0 ? 0 : squares - sum * sum / count; }
};

// Offsets of levels of magnitude 0, 1 and above, in steps.
struct LevelOffsets {
  Offsets of[3];

  // Of n elements; `inverse` is 1 / step.
  void add(const float* x, const std::uint8_t* symbols, std::size_t n, float inverse) {
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned magnitude = (symbols[i] % kClassSymbols + 1u) / 2;
      const float size = std::fabs(x[i]) * inverse;
      of[std::min(magnitude, 2u)].add(static_cast<double>(size - level_near(magnitude, size)));
    }
  }
  void add(const LevelOffsets& others) {
    for (std::size_t i = 0; i < 3; ++i) of[i].add(others.of[i]);
  }
  // Level 0 has no sign, so its reconstruction point cannot move.
  double error() const { return of[0].squares + of[1].error() + of[2].error(); }
};

}  // namespace gradcomp
