// Rotated quantizers with a scale that removes their bias: DRIVE (one bit) and EDEN (1 to 8 bits).
//
// A group r of the rotated vector becomes scale * q; q_i is the centroid nearest to r_i, in units
// of the group's root mean square. The unbiased scale is |r|^2 / <r, q>: then <r, scale * q> =
// |r|^2, so the error is orthogonal to r and the rotation's randomness averages it out.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/codecs.hpp"
#include "codecs/quantize/group_codec.hpp"
#include "coding/lloyd_max.hpp"
#include "kernels/centroids.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// After a Hadamard transform, few elements are far from normal, so the result would be far from
// unbiased.
constexpr std::size_t kMinNumel = 64;

// From this root mean square on, no product underflows.
constexpr double kMinRms = 0x1p-100;

constexpr float kOne[1] = {1.0f};

class Eden final : public GroupCodec {
 public:
  Eden(unsigned bits, Span<const float> positive, const Recipe& recipe)
      : GroupCodec(bits, true, kMinNumel, LevelCoder::named(recipe.coder_name("packed"))),
        centroids_(bits, positive),
        unbiased_(recipe.params.boolean("unbiased")) {}

  Caps caps() const noexcept override {
    Caps caps = GroupCodec::caps();
    caps.seeded = true;
    caps.private_noise = true;
    caps.finite = false;  // magnitudes above 2^84 may become NaN
    return caps;
  }

 private:
  float quantize(const float* v, std::size_t n, std::size_t, const Call&,
                 std::uint8_t* symbols) const override {
    const double squares = kernels().sum_squares(v, n);
    const double rms = std::sqrt(squares / static_cast<double>(n));
    const bool usable = rms <= static_cast<double>(kMaxRotatedScale);  // false for NaN
    if (!usable || rms < kMinRms) {
      std::fill(symbols, symbols + n, std::uint8_t{0});
      return usable ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const CentroidSums sums = kernels().quantize_centroids(v, static_cast<float>(1.0 / rms),
                                                           centroids_, !unbiased_, symbols, n);
    const double scale = unbiased_ ? squares / sums.dot : sums.dot / sums.energy;
    return scale <= static_cast<double>(kMaxRotatedScale) ? static_cast<float>(scale)
                                                          : std::numeric_limits<float>::quiet_NaN();
  }

  void values(float scale, float* table) const override {
    const std::uint32_t half = centroids_.half;
    for (std::uint32_t k = 0; k < half; ++k) {
      table[half + k] = scale * centroids_.positive[k];
      table[half - 1 - k] = -table[half + k];
    }
  }

  Centroids centroids_;
  bool unbiased_;
};

ParamInfo unbiased_param() {
  return boolean_param("unbiased", "true",
                       "the scale that makes the mean right; false: that of the least error");
}

const char* const kNonfinite =
    "a NaN or Inf makes all groups that share its block NaN; tensors of fewer than 64 elements "
    "keep it";

}  // namespace

StageInfo eden_stage() {
  StageInfo stage;
  stage.name = "eden";
  stage.id = 20;
  stage.summary =
      "rotation, the best quantizer for normal values, and a scale that makes it unbiased on dense "
      "gradients";
  stage.paper =
      "Vargaftik et al.: EDEN: Communication-Efficient and Robust Distributed Mean Estimation for "
      "Federated Learning, ICML 2022, section 3";
  stage.nonfinite = kNonfinite;
  stage.example = "eden(bits=2)";
  stage.params = {integer_param("bits", "2", 1, 8, "bits per element before a coder"),
                  unbiased_param()};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    const auto bits = static_cast<unsigned>(recipe.params.integer("bits"));
    return std::make_unique<Eden>(bits, lloyd_max_centroids(bits), recipe);
  };
  stage.symbols = Symbols::kLevels;
  return stage;
}

StageInfo drive_stage() {
  StageInfo stage;
  stage.name = "drive";
  stage.id = 21;
  stage.summary = "rotation and signs, with a scale that makes them unbiased on dense gradients";
  stage.paper =
      "Vargaftik et al.: DRIVE: One-bit Distributed Mean Estimation, NeurIPS 2021, section 3";
  stage.nonfinite = kNonfinite;
  stage.example = "drive";
  stage.params = {unbiased_param()};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Eden>(1, Span<const float>(kOne, 1), recipe);
  };
  return stage;
}

}  // namespace gradcomp
