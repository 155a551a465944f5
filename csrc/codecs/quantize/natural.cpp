// Natural compression: random rounding to powers of two. Payload: one byte per element.
#include "base/chunks.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/rounding.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

class Natural final : public Codec {
 public:
  Caps caps() const noexcept override {
    Caps caps;
    caps.fuses_feedback = true;
    caps.private_noise = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override { return n; }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    GRADCOMP_TRY(check_room(out, x.size()));
    float* const residual = residual_of(call);
    for_ranges(x.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for_rounding(x.data() + begin, end - begin, begin, call,
                   [&](std::size_t done, const std::uint32_t* words, std::size_t count) {
                     const std::size_t at = begin + done;
                     correct(call, at, at + count);
                     kernels().natural_encode(x.data() + at, words, out.data() + at, count);
                     if (residual != nullptr) {
                       kernels().natural_add(out.data() + at, -1.0f, residual + at, count);
                     }
                   });
    });
    *written = x.size();
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call&, Span<float> y) const override {
    GRADCOMP_TRY(check_payload_size(in, y.size(), y.size()));
    for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      kernels().natural_decode(in.data() + begin, y.data() + begin, end - begin);
    });
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call&, float weight,
                    Span<float> acc) const override {
    GRADCOMP_TRY(check_payload_size(in, acc.size(), acc.size()));
    for_ranges(acc.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      kernels().natural_add(in.data() + begin, weight, acc.data() + begin, end - begin);
    });
    return {};
  }
};

}  // namespace

StageInfo natural_stage() {
  StageInfo stage;
  stage.name = "natural";
  stage.id = 13;
  stage.summary =
      "random rounding to a power of two, in one byte; unbiased for magnitudes from 2^-108 to "
      "2^18; smaller ones become 0, larger ones 2^18";
  stage.paper =
      "Horvath, Ho, Horvath, Sahu, Canini, Richtarik: Natural Compression for Distributed Deep "
      "Learning, 2019, definition 1; with 7 bits of exponent";
  stage.nonfinite = "NaN and Inf become NaN";
  stage.example = "natural";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<Natural>(); };
  return stage;
}

}  // namespace gradcomp
