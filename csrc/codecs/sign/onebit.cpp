// 1-bit quantization. Payload: f32 mean of the elements below 0, f32 mean of all others, one bit
// per element, 1 if it is below 0.
#include <cmath>

#include "base/bytes.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sign/sign_bit_codec.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kHead = 8;

std::size_t count_bits(const std::uint8_t* bits, std::size_t bytes) {
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    count += static_cast<std::size_t>(__builtin_popcountll(load<std::uint64_t>(bits + i)));
  }
  for (; i < bytes; ++i) count += static_cast<std::size_t>(__builtin_popcount(bits[i]));
  return count;
}

float mean(double sum, std::size_t count) {
  return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
}

class OneBit final : public SignBitCodec {
 public:
  OneBit() : SignBitCodec(kHead) {}

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    Span<SignedSums> sums = call.scratch->get<SignedSums>(0, chunk_count(n) + 1);
    Span<std::size_t> counts = call.scratch->get<std::size_t>(1, chunk_count(n) + 1);
    if (sums.empty() || counts.empty()) {
      return capacity_error("out of memory while encoding to one bit");
    }
    std::uint8_t* bits = out.data() + kHead;
    for_chunks(n, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
      correct(call, begin, end);
      sums[chunk] = kernels().sum_by_sign(x.data() + begin, end - begin);
      kernels().pack_negative(x.data() + begin, bits + begin / 8, end - begin);
      counts[chunk] = count_bits(bits + begin / 8, bit_bytes(end - begin));
    });
    SignedSums total{0, 0};
    std::size_t negatives = 0;
    for (std::size_t i = 0; i < chunk_count(n); ++i) {
      total.negative += sums[i].negative;
      total.others += sums[i].others;
      negatives += counts[i];
    }
    const float low = mean(total.negative, negatives);
    const float high = mean(total.others, n - negatives);
    const bool finite = std::isfinite(total.negative) && std::isfinite(total.others);
    store(out.data(), finite ? low : bits_float(kNanBits));
    store(out.data() + 4, finite ? high : bits_float(kNanBits));
    *written = max_encoded_size(n);
    return subtract_sent(out, *written, call);
  }

 private:
  Values read(const std::uint8_t* head) const override {
    return {load<float>(head), load<float>(head + 4)};
  }
};

}  // namespace

StageInfo onebit_stage() {
  StageInfo stage;
  stage.name = "onebit";
  stage.id = 11;
  stage.summary =
      "one bit per element: the mean of the elements below 0, or the mean of all others; use with "
      "residual";
  stage.paper =
      "Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to "
      "Data-Parallel Distributed Training of Speech DNNs, Interspeech 2014, section 3";
  stage.nonfinite = "an element that is not finite makes the whole tensor NaN";
  stage.example = "onebit";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<OneBit>(); };
  return stage;
}

}  // namespace gradcomp
