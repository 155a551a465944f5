// 8-bit floating point (e4m3 or e5m2), with a scale per bucket.
#include <algorithm>
#include <limits>

#include "codec/stage.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/bucket_scale_codec.hpp"
#include "codecs/quantize/rounding.hpp"

namespace gradcomp {
namespace {

class Fp8 final : public BucketScaleCodec {
 public:
  explicit Fp8(const Params& params)
      : BucketScaleCodec(static_cast<std::size_t>(params.integer("bucket"))),
        format_(params.choice("format") == "e5m2" ? kE5m2 : kE4m3),
        random_(params.choice("rounding") == "stochastic") {}

  Caps caps() const noexcept override {
    Caps caps = BucketScaleCodec::caps();
    caps.private_noise = random_;
    return caps;
  }

 private:
  std::size_t code_bytes(std::size_t n) const noexcept override { return n; }

  float quantize(const float* x, float largest, const Call& call, std::size_t first,
                 std::uint8_t* codes, std::size_t n) const override {
    float scale = largest / format_.limit;
    // The division may round up; the largest code must not decode to Inf.
    if (scale * format_.limit > std::numeric_limits<float>::max()) {
      scale = bits_float(float_bits(scale) - 1);
    }
    // Decoding makes no denormals of larger scales. Smaller ones are negligible in a gradient.
    if (scale < 0x1p-126f / format_.quantum) {
      zeros(codes, n);
      return 0.0f;
    }
    const float inverse = 1.0f / scale;
    if (!random_) {
      kernels().fp8_encode(x, inverse, format_, codes, n);
      return scale;
    }
    for_rounding(
        x, n, first, call, [&](std::size_t done, const std::uint32_t* words, std::size_t count) {
          kernels().fp8_encode_randomly(x + done, words, inverse, format_, codes + done, count);
        });
    return scale;
  }

  void zeros(std::uint8_t* codes, std::size_t n) const override {
    std::fill_n(codes, n, std::uint8_t{0});
  }

  bool valid(const std::uint8_t* codes, std::size_t n) const override {
    std::uint8_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto magnitude = static_cast<std::uint8_t>(codes[i] & 0x7F);
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest <= format_.last_code;
  }

  void expand(const std::uint8_t* codes, float scale, float* y, std::size_t n) const override {
    kernels().fp8_decode(codes, format_, scale, y, n);
  }

  void expand_add(const std::uint8_t* codes, float scale, float weight, float* acc,
                  std::size_t n) const override {
    kernels().fp8_add(codes, format_, scale, weight, acc, n);
  }

  const Fp8Format& format_;
  bool random_;
};

}  // namespace

StageInfo fp8_stage() {
  StageInfo stage;
  stage.name = "fp8";
  stage.id = 30;
  stage.summary = "8-bit floating point times a scale per bucket";
  stage.paper =
      "Micikevicius et al.: FP8 Formats for Deep Learning, arXiv 2209.05433, with scales per "
      "bucket "
      "as in Alistarh et al.: QSGD, NeurIPS 2017, section 4";
  stage.nonfinite = "an element that is not finite makes its bucket NaN";
  stage.example = "fp8";
  stage.params = {
      choice_param("format", "e4m3", "e4m3|e5m2",
                   "e4m3 has one more bit of significand, e5m2 twice the range of exponents"),
      integer_param("bucket", "512", 16, kChunk, "elements that share a scale"),
      choice_param("rounding", "nearest", "nearest|stochastic",
                   "stochastic is unbiased, with a larger mean squared error"),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Fp8>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
