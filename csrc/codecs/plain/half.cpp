// The two 16-bit floats. Payload: numel binary16 (fp16) or bfloat16 (bf16).
#include "base/chunks.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codec/piece_codec.hpp"
#include "codecs/codecs.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kTile = 4096;  // elements that stay in the first-level cache

class Half : public PieceCodec {
 public:
  Caps caps() const noexcept override {
    Caps caps;
    caps.fuses_feedback = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept final { return 2 * n; }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const final {
    GRADCOMP_TRY(check_room(out, 2 * x.size()));
    float* const residual = residual_of(call);
    for_blocks(x.size(), kTile, [&](std::size_t, std::size_t begin, std::size_t count) {
      std::uint8_t* const to = out.data() + 2 * begin;
      correct(call, begin, begin + count);
      narrow(x.data() + begin, to, count);
      if (residual != nullptr) add(to, -1.0f, residual + begin, count);
    });
    *written = 2 * x.size();
    return {};
  }

  Status check(Span<const std::uint8_t> in, const Call&, std::size_t n) const final {
    return check_payload_size(in, 2 * n, n);
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final {
    GRADCOMP_TRY(check(in, call, y.size()));
    for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      widen(in.data() + 2 * begin, y.data() + begin, end - begin);
    });
    return {};
  }

  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const final {
    GRADCOMP_TRY(check(in, call, n));
    opened->unit = 1;
    opened->add = [this, in](std::size_t begin, std::size_t count, float weight, float* acc) {
      add(in.data() + 2 * begin, weight, acc, count);
    };
    return {};
  }

 private:
  virtual void narrow(const float* x, std::uint8_t* out, std::size_t n) const = 0;
  virtual void widen(const std::uint8_t* in, float* y, std::size_t n) const = 0;
  virtual void add(const std::uint8_t* in, float weight, float* acc, std::size_t n) const = 0;
};

class Fp16 final : public Half {
 public:
  explicit Fp16(bool saturate) : saturate_(saturate) {}

  Caps caps() const noexcept override {
    Caps caps = Half::caps();
    caps.summable = true;
    caps.finite = saturate_;
    caps.payload_type = PayloadType::kFloat16;
    return caps;
  }

 private:
  void narrow(const float* x, std::uint8_t* out, std::size_t n) const override {
    kernels().f32_to_f16(x, out, n, saturate_);
  }
  void widen(const std::uint8_t* in, float* y, std::size_t n) const override {
    kernels().f16_to_f32(in, y, n);
  }
  void add(const std::uint8_t* in, float weight, float* acc, std::size_t n) const override {
    kernels().f16_add(in, weight, acc, n);
  }

  bool saturate_;
};

// Not summable: no supported engine adds bfloat16 (Horovod refuses the type). Frames are gathered
// and summed in float32, which also loses less.
class Bf16 final : public Half {
 public:
  Caps caps() const noexcept override {
    Caps caps = Half::caps();
    caps.finite = false;  // values in the last half step below 2^128 round to Inf
    return caps;
  }

 private:
  void narrow(const float* x, std::uint8_t* out, std::size_t n) const override {
    kernels().f32_to_bf16(x, out, n);
  }
  void widen(const std::uint8_t* in, float* y, std::size_t n) const override {
    kernels().bf16_to_f32(in, y, n);
  }
  void add(const std::uint8_t* in, float weight, float* acc, std::size_t n) const override {
    kernels().bf16_add(in, weight, acc, n);
  }
};

}  // namespace

StageInfo fp16_stage() {
  StageInfo stage;
  stage.name = "fp16";
  stage.id = 2;
  stage.summary = "IEEE half precision, rounded to nearest even";
  stage.paper = "IEEE 754-2019, binary16";
  stage.nonfinite =
      "NaN and Inf are kept; overflow=inf turns |x| >= 65520 into Inf, overflow=saturate into "
      "65504 (Inf stays Inf)";
  stage.example = "fp16";
  stage.params = {
      choice_param("overflow", "inf", "inf|saturate", "result for finite values beyond 65504")};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Fp16>(recipe.params.choice("overflow") == "saturate");
  };
  return stage;
}

StageInfo bf16_stage() {
  StageInfo stage;
  stage.name = "bf16";
  stage.id = 3;
  stage.summary = "the upper half of float32, rounded to nearest even";
  stage.paper = "Kalamkar et al.: A Study of BFLOAT16 for Deep Learning Training, 2019";
  stage.nonfinite = "NaN and Inf are kept; |x| of 2^128 - 2^119 and above rounds to Inf";
  stage.example = "bf16";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<Bf16>(); };
  return stage;
}

}  // namespace gradcomp
