// Which quantizer polar_ec's encoder takes for a rate: the rule by which elements become points,
// and the step that makes their indices take a given number of bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/polar.hpp"

namespace gradcomp {

// Elements beyond all points travel as position and value.
inline constexpr std::size_t kOutlierBytes = 8;

// How many elements have which magnitude: 32 bins per octave, by the upper bits of a float32. What
// is not finite does not count.
class Magnitudes {
 public:
  Magnitudes() : counts_(kBins, 0) {}

  void add(const float* x, std::size_t n);
  // A normal variable of variance 1.
  static Magnitudes normal();

  // Calls fn(magnitude, count) for all bins with elements.
  template <typename Fn>
  void for_bins(const Fn& fn) const {
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      if (counts_[bin] != 0) fn(centre(bin), counts_[bin]);
    }
  }

 private:
  static constexpr unsigned kShift = 18;
  static constexpr std::size_t kBins = 0x7F800000u >> kShift;

  static float edge(std::size_t bin);  // its least magnitude
  static double centre(std::size_t bin);

  std::vector<std::uint32_t> counts_;
};

class LatticeDesign {
 public:
  // For indices of about so many bits per element, the code's bits not counted.
  explicit LatticeDesign(double rate);

  const LatticeRule& rule() const { return rule_; }
  // The step at which the indices of these elements, and the outliers among them, have `bits` bits
  // each, about; 0 where all are 0.
  double find_step(const Magnitudes& magnitudes, double bits) const;

 private:
  // Per element, with those of outliers.
  double index_bits(const Magnitudes& magnitudes, double step) const;

  LatticeRule rule_;
  std::uint16_t
      other_[64];  // of 1024 elements of this magnitude, whose points are of the other half
};

}  // namespace gradcomp
