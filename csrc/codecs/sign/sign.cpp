// Scaled sign. Payload: f32 scale, one bit per element, 1 if it is below 0.
#include <cmath>

#include "base/bytes.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sign/sign_bit_codec.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kHead = 4;

class Sign final : public SignBitCodec {
 public:
  Sign() : SignBitCodec(kHead) {}

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    Span<double> sums = call.scratch->get<double>(0, chunk_count(n) + 1);
    if (sums.empty()) return capacity_error("out of memory while encoding signs");
    std::uint8_t* bits = out.data() + kHead;
    for_chunks(n, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
      correct(call, begin, end);
      sums[chunk] = kernels().sum_magnitudes(x.data() + begin, end - begin);
      kernels().pack_negative(x.data() + begin, bits + begin / 8, end - begin);
    });
    double sum = 0;
    for (std::size_t i = 0; i < chunk_count(n); ++i) sum += sums[i];
    const float scale = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
    store(out.data(), std::isfinite(scale) ? scale : bits_float(kNanBits));
    *written = max_encoded_size(n);
    return subtract_sent(out, *written, call);
  }

 private:
  Values read(const std::uint8_t* head) const override {
    const auto scale = load<float>(head);
    return {-scale, scale};
  }
};

}  // namespace

StageInfo sign_stage() {
  StageInfo stage;
  stage.name = "sign";
  stage.id = 10;
  stage.summary = "one bit per element: its sign, times the mean magnitude; use with residual";
  stage.paper =
      "Karimireddy et al.: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, "
      "ICML 2019, algorithm 1 (the scaled sign)";
  stage.nonfinite = "an element that is not finite makes the whole tensor NaN";
  stage.example = "sign";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<Sign>(); };
  return stage;
}

}  // namespace gradcomp
