// 2^bits levels at equal distances, symmetric around 0, with one scale per group.
//
// The levels of a group are (2k - top) * h with k = 0 ... top and top = 2^bits - 1; the scale on
// the wire is h, half the distance between two of them.
#include "codecs/quantize/uniform.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/bytes.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/group_codec.hpp"
#include "codecs/quantize/rounding.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr float kNearestClip[9] = {0,       0.7979f, 1.4936f, 2.0511f, 2.5141f,
                                   2.9161f, 3.2779f, 3.6109f, 3.9220f};
constexpr float kStochasticClip[9] = {0,       0.6473f, 1.2703f, 1.8281f, 2.3086f,
                                      2.7288f, 3.1043f, 3.4494f, 3.7698f};

}  // namespace

float clip_of_normal(unsigned bits, bool stochastic) noexcept {
  assert(bits <= 8);
  return (stochastic ? kStochasticClip : kNearestClip)[bits];
}

namespace {

class Uniform final : public GroupCodec {
 public:
  explicit Uniform(const Recipe& recipe)
      : GroupCodec(static_cast<unsigned>(recipe.params.integer("bits")),
                   recipe.transform != nullptr, 0, LevelCoder::named(recipe.coder_name("packed"))),
        top_(static_cast<float>((1u << bits()) - 1)),
        stochastic_(recipe.params.choice("rounding") == "stochastic") {
    if (recipe.params.has("clip")) {
      clip_ = recipe.params.real("clip");
    } else if (rotated()) {
      clip_ = static_cast<double>(clip_of_normal(bits(), stochastic_));
    }
  }

  Caps caps() const noexcept override {
    Caps caps = GroupCodec::caps();
    caps.seeded = rotated();
    caps.private_noise = stochastic_ || rotated();
    caps.finite = !rotated();  // magnitudes above 2^94 may become NaN
    return caps;
  }

 private:
  // Outermost level: the largest magnitude, or less if large magnitudes are clipped.
  float limit(const float* v, std::size_t n, std::uint32_t largest) const {
    const float most = bits_float(largest);
    if (clip_ == 0) return most;
    const double deviation = std::sqrt(kernels().sum_squares(v, n) / static_cast<double>(n));
    return static_cast<float>(std::min(clip_ * deviation, static_cast<double>(most)));
  }

  void quantize(const float* v, std::size_t n, std::size_t first, const Call& call,
                std::uint8_t* symbols, float* scale) const override {
    const std::uint32_t largest = kernels().max_magnitude(v, n);
    float half_step = std::numeric_limits<float>::quiet_NaN();
    if (largest < kInfBits) {
      const float outermost = limit(v, n, largest);
      half_step = outermost / top_;
      if (top_ * half_step > outermost) half_step = std::nextafterf(half_step, 0.0f);
      if (half_step < std::numeric_limits<float>::min()) half_step = 0.0f;  // no finite inverse
      if (rotated() && half_step > kMaxRotatedScale) {
        half_step = std::numeric_limits<float>::quiet_NaN();
      }
    }
    *scale = half_step;
    if (!(half_step > 0.0f)) {
      std::fill(symbols, symbols + n, std::uint8_t{0});
      return;
    }
    const float inverse = 0.5f / half_step;
    if (!stochastic_) {
      kernels().quantize_uniform(v, inverse, top_, nullptr, symbols, n);
      return;
    }
    for_rounding(
        v, n, first, call, [&](std::size_t done, const std::uint32_t* words, std::size_t count) {
          kernels().quantize_uniform(v + done, inverse, top_, words, symbols + done, count);
        });
  }

  void values(const float* scale, float* table) const override {
    for (int k = 0; k < 1 << bits(); ++k) {
      table[k] = (static_cast<float>(2 * k) - top_) * *scale;
    }
  }

  float top_;
  bool stochastic_;
  double clip_ = 0;  // 0: at the largest magnitude
};

}  // namespace

StageInfo uniform_stage() {
  StageInfo stage;
  stage.name = "uniform";
  stage.id = 19;
  stage.summary =
      "2^bits levels at equal distances, with one scale per 512 elements, or per block after "
      "'rotate'; unbiased with rounding=stochastic if nothing is clipped";
  stage.paper =
      "Suresh, Yu, Kumar, McMahan: Distributed Mean Estimation with Limited Communication, ICML "
      "2017, sections 2.2 and 3; clipping after a rotation: Li et al.: THC, NSDI 2024";
  stage.nonfinite =
      "a NaN or Inf makes its whole group NaN, after 'rotate' all groups that share its block";
  stage.example = "uniform(bits=4)";
  stage.params = {
      integer_param("bits", "4", 1, 8, "bits per element before a coder"),
      real_param("clip", nullptr, 0, 64,
                 "outermost level in root mean squares of the group; default: the largest "
                 "magnitude, or after 'rotate' the best level for normal values",
                 true),
      choice_param("rounding", "nearest", "nearest|stochastic",
                   "to the nearest level, or at random to one of the two neighbours"),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Uniform>(recipe);
  };
  stage.symbols = Symbols::kLevels;
  stage.rotatable = true;
  return stage;
}

}  // namespace gradcomp
