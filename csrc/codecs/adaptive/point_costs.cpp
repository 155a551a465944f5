#include "codecs/adaptive/point_costs.hpp"

#include "codecs/adaptive/group_form.hpp"
#include "codecs/adaptive/quantized.hpp"
#include "polar/elementary.hpp"
#include "polar/lattice.hpp"

namespace gradcomp {
namespace {

constexpr double kRatio = 58;  // LLR for a difference of 1 between squared distances
// The odds that a codeword has the bit that costs more are exp(-kCertainty * difference).
constexpr double kCertainty = 6;
constexpr double kBitsOfHalf = 29.0 / 64;  // a codeword's share of an element

}  // namespace

LevelCosts::LevelCosts(const FrequencyTables& tables) {
  for (unsigned c = 0; c < kClasses; ++c) {
    for (unsigned m = 0; m <= kTopMagnitude; ++m) {
      bits[c][m] = static_cast<float>(kBitWorth * tables.bits(c, m));
    }
  }
}

PointRules::PointRules(const FrequencyTables& indices) {
  for (unsigned c = 0; c < kClasses; ++c) {
    const double centre = static_cast<double>(GroupForm::centre(indices.level(c))) / 64;
    double price[kTopMagnitude + 1];  // in squares of the points' distance
    for (unsigned k = 0; k <= kTopMagnitude; ++k) {
      price[k] = kBitWorth / kSquaredSpacing * indices.bits(c, k);
    }
    const auto cost = [&](double magnitude, bool other) {
      const double error = other ? magnitude + centre : magnitude - centre;
      double least = error * error + price[0];
      for (unsigned k = other ? 1 : 2; k <= kTopMagnitude; k += 2) {
        const double far = magnitude - (k + 0.5);
        least = std::min(least, far * far + price[k]);
      }
      return least;
    };
    for (int i = 0; i < 64; ++i) {
      const double magnitude = (i + 0.5) / 16;
      const double ratio = cost(magnitude, true) - cost(magnitude, false);
      of[c].llr[i] = static_cast<std::int8_t>(
          std::min(std::max(std::floor(kRatio * ratio + 0.5), -127.0), 127.0));
    }
    for (int i = 0; i < kCosts; ++i) {
      const double magnitude = (i + 0.5) / 16;
      const double same = cost(magnitude, false);
      const double other = cost(magnitude, true);
      const double against = 1 / (1 + portable_exp(kCertainty * std::fabs(other - same)));
      const double mean = std::min(same, other) + against * std::fabs(other - same);
      this->cost[c][i] = static_cast<float>(kSquaredSpacing * mean + kBitWorth * kBitsOfHalf);
    }
    // The place at which the next point of a half costs as much as the first one.
    const auto bound = [&](double near, unsigned k) {
      const double far = k + 0.5;
      return (far * far - near * near + price[k] - price[0]) / (2 * (far - near));
    };
    of[c].same = static_cast<std::int16_t>(32 - std::floor(16 * bound(centre, 2) + 0.5));
    of[c].other = static_cast<std::int16_t>(32 - std::floor(16 * bound(-centre, 1) + 0.5));
  }
}

}  // namespace gradcomp
