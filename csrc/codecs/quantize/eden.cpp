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
#include "codecs/quantize/rotated_groups.hpp"
#include "coding/lloyd_max.hpp"
#include "kernels/centroids.hpp"
#include "kernels/kernels.hpp"
#include "kernels/sums.hpp"

namespace gradcomp {
namespace {

constexpr float kOne[1] = {1.0f};

class Eden final : public RotatedGroups {
 public:
  Eden(unsigned bits, Span<const float> positive, const Recipe& recipe)
      : RotatedGroups(bits, recipe), centroids_(bits, positive) {}

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

const char* refuse_eden(const Params& params, const StageInfo* memory) {
  const Value& bits = params.values().find("bits")->second;
  double least = bits.real;
  double most = bits.real;
  if (bits.schedule) {
    for (const double value : bits.schedule->values) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  if (most > 7 && (bits.schedule || most < 8)) {
    return "bits above 7 are 8, without a schedule: at 7 bits the error is below 0.02 %";
  }
  if (least < 1 && memory != nullptr && params.boolean("unbiased")) {
    return "error feedback diverges below 1 bit with unbiased=true, because the elements that are "
           "sent are scaled to stand for all; leave out the memory, or take unbiased=false";
  }
  return nullptr;
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
  ParamInfo bits =
      real_param("bits", "2", 0, 8,
                 "bits per element before a coder; between whole numbers, some of the rotated "
                 "elements take one bit more than the others, which below 1 bit are not sent",
                 true);
  bits.short_whole = true;
  stage.params = {bits, unbiased_param()};
  stage.refuse = refuse_eden;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    const double bits = recipe.params.real("bits");
    const auto whole = static_cast<unsigned>(bits);
    if (bits != static_cast<double>(whole)) return make_mixed_eden(bits, recipe);
    return std::make_unique<Eden>(whole, lloyd_max_centroids(whole), recipe);
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
