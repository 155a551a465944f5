// Base class for quantizers of a rotated vector with unbiased scales: DRIVE and EDEN.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "codecs/quantize/group_codec.hpp"
#include "kernels/centroids.hpp"

namespace gradcomp {

class RotatedGroups : public GroupCodec {
 public:
  RotatedGroups(unsigned bits, const Recipe& recipe, std::size_t scales = 1)
      : GroupCodec(bits, true, kMinNumel, LevelCoder::named(recipe.coder_name("packed")), scales),
        unbiased_(recipe.params.boolean("unbiased")) {}

  Caps caps() const noexcept final {
    Caps caps = GroupCodec::caps();
    caps.seeded = true;
    caps.private_noise = true;
    caps.finite = false;  // magnitudes above 2^84 may become NaN
    return caps;
  }

 protected:
  bool unbiased() const noexcept { return unbiased_; }

  // Root mean square of a group with this sum of squares; if the group has no levels, 0, with all
  // symbols 0 and *scale 0 or NaN.
  static double usable_rms(double squares, std::size_t n, std::uint8_t* symbols, float* scale) {
    const double rms = std::sqrt(squares / static_cast<double>(n));
    const bool finite = rms <= static_cast<double>(kMaxRotatedScale);  // false for NaN
    if (finite && rms >= kMinRms) return rms;
    std::fill(symbols, symbols + n, std::uint8_t{0});
    *scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    return 0;
  }

  static float limited(double scale) {
    return std::fabs(scale) <= static_cast<double>(kMaxRotatedScale)
               ? static_cast<float>(scale)
               : std::numeric_limits<float>::quiet_NaN();
  }

 private:
  // After a Hadamard transform, few elements are far from normal, so the result would be far from
  // unbiased.
  static constexpr std::size_t kMinNumel = 64;
  // From this root mean square on, no product underflows.
  static constexpr double kMinRms = 0x1p-100;

  bool unbiased_;
};

// Writes the values of the symbols of symmetric levels.
inline void scaled_centroids(const Centroids& centroids, float scale, float* table) {
  const std::uint32_t half = centroids.half;
  for (std::uint32_t k = 0; k < half; ++k) {
    table[half + k] = scale * centroids.positive[k];
    table[half - 1 - k] = -table[half + k];
  }
}

// EDEN at a number of bits that is not whole, in (0, 7).
std::unique_ptr<Codec> make_mixed_eden(double bits, const Recipe& recipe);

}  // namespace gradcomp
