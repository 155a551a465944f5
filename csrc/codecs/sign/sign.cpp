// Signs times a scale. Payload: f32 scale, one bit per element, 1 if it is below 0.
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
  explicit Sign(bool scaled) : SignBitCodec(kHead), scaled_(scaled) {}

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
    const float mean = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
    store(out.data(),
          std::isfinite(mean) ? (scaled_ || n == 0 ? mean : 1.0f) : bits_float(kNanBits));
    *written = max_encoded_size(n);
    return subtract_sent(out, *written, call);
  }

 private:
  Values read(const std::uint8_t* head) const override {
    const auto scale = load<float>(head);
    return {-scale, scale};
  }

  const bool scaled_;
};

}  // namespace

StageInfo sign_stage() {
  StageInfo stage;
  stage.name = "sign";
  stage.id = 10;
  stage.summary = "one bit per element: its sign, times the mean magnitude; use with residual";
  stage.paper =
      "Karimireddy et al.: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, "
      "ICML 2019, algorithm 1 (the scaled sign); scale=one: Bernstein et al.: signSGD: Compressed "
      "Optimisation for Non-Convex Problems, ICML 2018, algorithm 1";
  stage.nonfinite = "an element that is not finite makes the whole tensor NaN";
  stage.example = "sign";
  ParamInfo scale = choice_param("scale", "mean", "mean|one",
                                 "mean: the mean magnitude; one: the values are 1 and -1");
  scale.omits_default = true;
  stage.params = {scale};
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (params.choice("scale") != "one" || memory == nullptr || !memory->feeds_back) return nullptr;
    return "error feedback cannot follow gradients beyond 1 with scale=one, because a step applies "
           "1 or -1 to each element: leave out the memory, or scale=one";
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Sign>(recipe.params.choice("scale") == "mean");
  };
  return stage;
}

}  // namespace gradcomp
