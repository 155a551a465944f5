// Quantizer of polar_ec's encoder for a rate: the rule that maps elements to points, and the step
// with which their indices take a given number of bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/polar.hpp"

namespace gradcomp {

// Size of an outlier: elements beyond all points are sent as position and value.
inline constexpr std::size_t kOutlierBytes = 8;

// Histogram of magnitudes: 32 bins per octave, by the upper bits of a float32. Elements that are
// not finite do not count.
class Magnitudes {
 public:
  Magnitudes() : counts_(kBins, 0) {}

  void add(const float* x, std::size_t n);
  // Histogram of a normal variable of variance 1.
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

  static float edge(std::size_t bin);  // least magnitude of the bin
  static double centre(std::size_t bin);

  std::vector<std::uint32_t> counts_;
};

class LatticeDesign {
 public:
  // For indices of about so many bits per element, the code's bits not counted.
  explicit LatticeDesign(double rate);

  const LatticeRule& rule() const { return rule_; }
  // Step with which the indices and outliers of these elements take about `bits` bits per element.
  // 0 if all elements are 0.
  double find_step(const Magnitudes& magnitudes, double bits) const;

 private:
  // Bits per element, including outliers.
  double index_bits(const Magnitudes& magnitudes, double step) const;

  LatticeRule rule_;
  std::uint16_t other_[64];  // of 1024 elements of each magnitude, number of those with points in
                             // the other half
};

}  // namespace gradcomp
