// The dynamic 8-bit data type, with a scale per block of 4096 elements.
#include <algorithm>

#include "codecs/codecs.hpp"
#include "codecs/quantize/bucket_scale_codec.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::uint8_t kZero = 127;

class Blockwise8 final : public BucketScaleCodec {
 public:
  Blockwise8() : BucketScaleCodec(kBlock) {}

 private:
  std::size_t code_bytes(std::size_t n) const noexcept override { return n; }

  float quantize(const float* x, float largest, const Call&, std::size_t, std::uint8_t* codes,
                 std::size_t n) const override {
    kernels().dynamic8_encode(x, largest, codes, n);
    return largest;
  }

  void zeros(std::uint8_t* codes, std::size_t n) const override { std::fill_n(codes, n, kZero); }

  bool valid(const std::uint8_t*, std::size_t) const override { return true; }

  void expand(const std::uint8_t* codes, float scale, float* y, std::size_t n) const override {
    kernels().dynamic8_decode(codes, scale, y, n);
  }

  void expand_add(const std::uint8_t* codes, float scale, float weight, float* acc,
                  std::size_t n) const override {
    kernels().dynamic8_add(codes, scale, weight, acc, n);
  }
};

}  // namespace

StageInfo blockwise8_stage() {
  StageInfo stage;
  stage.name = "blockwise8";
  stage.id = 18;
  stage.summary =
      "the nearest value of the dynamic 8-bit data type (as in bitsandbytes and hivemind), with "
      "one scale per 4096 elements";
  stage.paper =
      "Dettmers, Lewis, Shleifer, Zettlemoyer: 8-bit Optimizers via Block-wise Quantization, ICLR "
      "2022, section 2; Dettmers: 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016";
  stage.nonfinite = "an element that is not finite makes its block NaN";
  stage.example = "blockwise8";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> {
    return std::make_unique<Blockwise8>();
  };
  return stage;
}

}  // namespace gradcomp
