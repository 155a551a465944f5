// Rotated quantizers with a scale that removes their bias: DRIVE and DRIVE+ (one bit) and EDEN (1
// to 8 bits).
//
// A group r of the rotated vector becomes scale * q; q_i is the centroid nearest to r_i, in units
// of the group's root mean square. The unbiased scale is |r|^2 / <r, q>: then <r, scale * q> =
// |r|^2, so the error is orthogonal to r and the rotation's randomness averages it out.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/group_codec.hpp"
#include "coding/lloyd_max.hpp"
#include "kernels/centroids.hpp"
#include "kernels/kernels.hpp"
#include "kernels/sums.hpp"

namespace gradcomp {
namespace {

// After a Hadamard transform, few elements are far from normal, so the result would be far from
// unbiased.
constexpr std::size_t kMinNumel = 64;

// From this root mean square on, no product underflows.
constexpr double kMinRms = 0x1p-100;

constexpr float kOne[1] = {1.0f};

class RotatedGroups : public GroupCodec {
 public:
  RotatedGroups(unsigned bits, const Recipe& recipe, std::size_t scales)
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
  bool unbiased_;
};

// Writes the values of the symbols of symmetric levels.
void scaled_centroids(const Centroids& centroids, float scale, float* table) {
  const std::uint32_t half = centroids.half;
  for (std::uint32_t k = 0; k < half; ++k) {
    table[half + k] = scale * centroids.positive[k];
    table[half - 1 - k] = -table[half + k];
  }
}

class Eden final : public RotatedGroups {
 public:
  Eden(unsigned bits, Span<const float> positive, const Recipe& recipe)
      : RotatedGroups(bits, recipe, 1), centroids_(bits, positive) {}

 private:
  void quantize(const float* v, std::size_t n, std::size_t, const Call&, std::uint8_t* symbols,
                float* scale) const override {
    const double squares = kernels().sum_squares(v, n);
    const double rms = usable_rms(squares, n, symbols, scale);
    if (rms == 0) return;
    const CentroidSums sums = kernels().quantize_centroids(v, static_cast<float>(1.0 / rms),
                                                           centroids_, !unbiased(), symbols, n);
    *scale = limited(unbiased() ? squares / sums.dot : sums.dot / sums.energy);
  }

  void values(const float* scale, float* table) const override {
    scaled_centroids(centroids_, *scale, table);
  }

  Centroids centroids_;
};

// DRIVE+: the two values of a group are the means of the elements below and above a bound, which
// Lloyd's iterations move to the middle between them.
class TwoMeans final : public RotatedGroups {
 public:
  explicit TwoMeans(const Recipe& recipe) : RotatedGroups(1, recipe, 2) {}

 private:
  static constexpr int kIterations = 3;

  struct Parts {
    double means[2] = {0, 0};  // 0 of no element
    std::size_t counts[2] = {0, 0};
  };

  // The elements below the bound, and the others.
  static Parts split(const float* v, std::size_t n, float bound) {
    PartialSums low;
    PartialSums high;
    Parts parts;
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const std::size_t size = std::min<std::size_t>(16, n - i);
      // Without branches, which would be predicted wrongly for half of the elements.
      std::uint32_t masks[16];
      for (std::size_t j = 0; j < size; ++j) masks[j] = v[i + j] < bound ? 0xFFFFFFFFu : 0u;
      for (std::size_t j = 0; j < size; ++j) count += masks[j] & 1u;
      for (std::size_t j = 0; j < size; ++j) {
        const std::uint32_t bits = float_bits(v[i + j]);
        low.partial[j] += static_cast<double>(bits_float(bits & masks[j]));
        high.partial[j] += static_cast<double>(bits_float(bits & ~masks[j]));
      }
    }
    parts.counts[0] = count;
    parts.counts[1] = n - parts.counts[0];
    const double sums[2] = {low.total(), high.total()};
    for (int k = 0; k < 2; ++k) {
      if (parts.counts[k] != 0) parts.means[k] = sums[k] / static_cast<double>(parts.counts[k]);
    }
    return parts;
  }

  void quantize(const float* v, std::size_t n, std::size_t, const Call&, std::uint8_t* symbols,
                float* scales) const override {
    const double squares = kernels().sum_squares(v, n);
    const double rms = usable_rms(squares, n, symbols, scales);
    scales[1] = scales[0];
    if (rms == 0) return;
    // With an infinite bound all elements are below it.
    const double mean = split(v, n, std::numeric_limits<float>::infinity()).means[0];
    auto bound = static_cast<float>(mean);
    Parts parts = split(v, n, bound);
    for (int i = 0; i < kIterations; ++i) {
      const std::size_t before = parts.counts[0];
      bound = static_cast<float>((parts.means[0] + parts.means[1]) / 2);
      parts = split(v, n, bound);
      if (parts.counts[0] == before) break;
    }
    double energy = 0;
    for (int k = 0; k < 2; ++k) {
      energy += static_cast<double>(parts.counts[k]) * (parts.means[k] * parts.means[k]);
    }
    const double factor = unbiased() ? squares / energy : 1.0;
    for (int k = 0; k < 2; ++k) scales[k] = limited(factor * parts.means[k]);
    for (std::size_t i = 0; i < n; ++i) symbols[i] = v[i] < bound ? 0 : 1;
  }

  void values(const float* means, float* table) const override {
    table[0] = means[0];
    table[1] = means[1];
  }
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
      "Vargaftik et al.: DRIVE: One-bit Distributed Mean Estimation, NeurIPS 2021, section 3; "
      "two_means=true: DRIVE+ of the same paper";
  stage.nonfinite = kNonfinite;
  stage.example = "drive";
  ParamInfo two_means = boolean_param("two_means", "false",
                                      "DRIVE+: the two values of a block are fitted to it, instead "
                                      "of one magnitude with both signs");
  two_means.omits_default = true;
  stage.params = {two_means, unbiased_param()};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    if (recipe.params.boolean("two_means")) return std::make_unique<TwoMeans>(recipe);
    return std::make_unique<Eden>(1, Span<const float>(kOne, 1), recipe);
  };
  return stage;
}

}  // namespace gradcomp
