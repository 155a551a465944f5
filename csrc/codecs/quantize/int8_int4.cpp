// Linear quantization to 8 or 4 bits, with a scale per bucket.
#include <algorithm>
#include <limits>

#include "codec/stage.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/bucket_scale_codec.hpp"
#include "codecs/quantize/rounding.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kPiece = kRoundingPiece;  // elements at a time, an even number

// 8 bits: levels -127 to 127 as int8. 4 bits: levels -7 to 7, two in a byte, the first one in the
// lower half.
class IntegerCodec : public BucketScaleCodec {
 public:
  IntegerCodec(const Params& params, float limit)
      : BucketScaleCodec(static_cast<std::size_t>(params.integer("bucket"))),
        limit_(limit),
        random_(params.choice("rounding") == "stochastic") {}

  Caps caps() const noexcept final {
    Caps caps = BucketScaleCodec::caps();
    caps.private_noise = random_;
    return caps;
  }

 private:
  // Writes the codes of at most kPiece levels; their bytes begin `done` levels after `codes`.
  virtual void pack(const std::uint8_t* levels, std::uint8_t* codes, std::size_t done,
                    std::size_t n) const = 0;

  float quantize(const float* x, float largest, const Call& call, std::size_t first,
                 std::uint8_t* codes, std::size_t n) const final {
    float scale = largest / limit_;
    // The division may round up; the largest level must not decode to Inf.
    if (scale * limit_ > std::numeric_limits<float>::max()) {
      scale = bits_float(float_bits(scale) - 1);
    }
    if (scale < 0x1p-126f) {  // too small for a finite inverse, and negligible in a gradient
      zeros(codes, n);
      return 0.0f;
    }
    const float inverse = 1.0f / scale;
    alignas(64) std::uint8_t levels[kPiece];
    if (random_) {
      for_rounding(x, n, first, call,
                   [&](std::size_t done, const std::uint32_t* words, std::size_t count) {
                     kernels().quantize_randomly(x + done, words, inverse, limit_, levels, count);
                     pack(levels, codes, done, count);
                   });
      return scale;
    }
    for (std::size_t done = 0; done < n; done += kPiece) {
      const std::size_t count = std::min(n - done, kPiece);
      kernels().quantize(x + done, inverse, limit_, levels, count);
      pack(levels, codes, done, count);
    }
    return scale;
  }

  void zeros(std::uint8_t* codes, std::size_t n) const final {
    std::fill_n(codes, code_bytes(n), std::uint8_t{0});
  }

  std::size_t code_bytes(std::size_t n) const noexcept override = 0;

  float limit_;
  bool random_;
};

class Int8 final : public IntegerCodec {
 public:
  explicit Int8(const Params& params) : IntegerCodec(params, 127.0f) {}

 private:
  std::size_t code_bytes(std::size_t n) const noexcept override { return n; }

  void pack(const std::uint8_t* levels, std::uint8_t* codes, std::size_t done,
            std::size_t n) const override {
    std::copy_n(levels, n, codes + done);
  }

  bool valid(const std::uint8_t* codes, std::size_t n) const override {
    std::uint8_t bad = 0;
    for (std::size_t i = 0; i < n; ++i) bad |= codes[i] == 0x80 ? 1 : 0;
    return bad == 0;
  }

  void expand(const std::uint8_t* codes, float scale, float* y, std::size_t n) const override {
    kernels().scale_levels(codes, scale, y, n);
  }

  void expand_add(const std::uint8_t* codes, float scale, float weight, float* acc,
                  std::size_t n) const override {
    kernels().scale_levels_add(codes, scale, weight, acc, n);
  }
};

class Int4 final : public IntegerCodec {
 public:
  explicit Int4(const Params& params) : IntegerCodec(params, 7.0f) {}

 private:
  std::size_t code_bytes(std::size_t n) const noexcept override { return (n + 1) / 2; }

  void pack(const std::uint8_t* levels, std::uint8_t* codes, std::size_t done,
            std::size_t n) const override {
    codes += done / 2;
    for (std::size_t i = 0; i < n / 2; ++i) {
      codes[i] = static_cast<std::uint8_t>((levels[2 * i] & 0xF) | levels[2 * i + 1] << 4);
    }
    if (n % 2 != 0) codes[n / 2] = static_cast<std::uint8_t>(levels[n - 1] & 0xF);
  }

  bool valid(const std::uint8_t* codes, std::size_t n) const override {
    std::uint8_t bad = 0;
    for (std::size_t i = 0; i < code_bytes(n); ++i) {
      bad |= (codes[i] & 0xF) == 0x8 || (codes[i] & 0xF0) == 0x80 ? 1 : 0;
    }
    return bad == 0 && (n % 2 == 0 || codes[n / 2] >> 4 == 0);
  }

  // Unpacks at most kPiece levels, from an even one on.
  static void unpack(const std::uint8_t* codes, std::uint8_t* levels, std::size_t n) {
    for (std::size_t i = 0; i < (n + 1) / 2; ++i) {
      // Sign extension: -8 to 7 from the lower and the upper half.
      levels[2 * i] = static_cast<std::uint8_t>(((codes[i] & 0xF) ^ 0x8) - 0x8);
      levels[2 * i + 1] = static_cast<std::uint8_t>(((codes[i] >> 4) ^ 0x8) - 0x8);
    }
  }

  void expand(const std::uint8_t* codes, float scale, float* y, std::size_t n) const override {
    alignas(64) std::uint8_t levels[kPiece];
    for (std::size_t done = 0; done < n; done += kPiece) {
      const std::size_t count = std::min(n - done, kPiece);
      unpack(codes + done / 2, levels, count);
      kernels().scale_levels(levels, scale, y + done, count);
    }
  }

  void expand_add(const std::uint8_t* codes, float scale, float weight, float* acc,
                  std::size_t n) const override {
    alignas(64) std::uint8_t levels[kPiece];
    for (std::size_t done = 0; done < n; done += kPiece) {
      const std::size_t count = std::min(n - done, kPiece);
      unpack(codes + done / 2, levels, count);
      kernels().scale_levels_add(levels, scale, weight, acc + done, count);
    }
  }
};

StageInfo integer_stage() {
  StageInfo stage;
  stage.paper =
      "Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, section 4 (buckets), with the "
      "maximum norm";
  stage.nonfinite = "an element that is not finite makes its bucket NaN";
  stage.params = {
      integer_param("bucket", "512", 16, kChunk, "elements that share a scale"),
      choice_param("rounding", "nearest", "nearest|stochastic",
                   "stochastic is unbiased, with a larger mean squared error"),
  };
  return stage;
}

}  // namespace

StageInfo int8_stage() {
  StageInfo stage = integer_stage();
  stage.name = "int8";
  stage.id = 16;
  stage.summary = "integers from -127 to 127 times a scale per bucket";
  stage.example = "int8";
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Int8>(recipe.params);
  };
  return stage;
}

StageInfo int4_stage() {
  StageInfo stage = integer_stage();
  stage.name = "int4";
  stage.id = 17;
  stage.summary = "integers from -7 to 7 times a scale per bucket";
  stage.example = "int4";
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Int4>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
