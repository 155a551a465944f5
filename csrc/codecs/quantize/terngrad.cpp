// Random ternary quantization. Payload: f32 scale, then five elements per byte as digits in base 3:
// 0 for 0, 1 for the scale, 2 for its negative.
//
// Digits of a block of kBlock elements are interleaved, so that packing works on whole vectors:
// byte j of a block of B bytes has the elements j, j + B, ..., j + 4B.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codec/piece_codec.hpp"
#include "codecs/codecs.hpp"
#include "codecs/quantize/rounding.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kHead = 4;
constexpr std::size_t kDigits = 5;
constexpr std::size_t kBlockBytes = 256;
constexpr std::size_t kBlock = kDigits * kBlockBytes;
constexpr unsigned kByteValues = 243;  // 3^5

std::size_t packed_bytes(std::size_t n) { return (n + kDigits - 1) / kDigits; }

void pack(const std::uint8_t* digits, std::uint8_t* out, std::size_t bytes) {
  for (std::size_t j = 0; j < bytes; ++j) {
    // Bytes throughout, so that a vector holds many.
    std::uint8_t packed = digits[4 * bytes + j];
    for (std::size_t k = 4; k-- > 0;) {
      packed = static_cast<std::uint8_t>(packed + packed + packed + digits[k * bytes + j]);
    }
    out[j] = packed;
  }
}

// Level of a digit, as int8: 0, 1 or -1.
std::uint8_t level_of(std::uint8_t digit) {
  return static_cast<std::uint8_t>(digit - (digit >> 1) - (digit >> 1) - (digit >> 1));
}

// Unpacks to levels: 0, 1 and -1. Writes nothing beyond kDigits * bytes levels.
void unpack(const std::uint8_t* in, std::uint8_t* levels, std::size_t bytes) {
  std::uint8_t rest[kBlockBytes];
  std::copy_n(in, bytes, rest);
  std::uint8_t power = kByteValues / 3;
  for (std::size_t k = kDigits; k-- > 0; power = static_cast<std::uint8_t>(power / 3)) {
    std::uint8_t* level = levels + k * bytes;
    const auto twice = static_cast<std::uint8_t>(2 * power);
    for (std::size_t j = 0; j < bytes; ++j) {
      const std::uint8_t byte = rest[j];
      const std::uint8_t one = byte >= power ? 1 : 0;
      const std::uint8_t two = byte >= twice ? 1 : 0;
      const std::uint8_t less = byte >= power ? power : 0;
      const std::uint8_t more = byte >= twice ? power : 0;
      level[j] = static_cast<std::uint8_t>(one - two - two);
      rest[j] = static_cast<std::uint8_t>(byte - less - more);
    }
  }
}

// Contribution of a chunk to the scale.
struct ChunkStatistics {
  Moments moments;
  std::uint32_t largest;  // magnitude bits
};

class TernGrad final : public PieceCodec {
 public:
  explicit TernGrad(const Params& params) : clip_(params.real("clip")) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.fuses_feedback = true;
    caps.private_noise = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return kHead + packed_bytes(n);
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    GRADCOMP_TRY(check_room(out, max_encoded_size(x.size())));
    float scale = 0;
    GRADCOMP_TRY(find_scale(x, call, &scale));
    store(out.data(), scale);
    float* const residual = residual_of(call);
    for_blocks(x.size(), kBlock, [&](std::size_t block, std::size_t begin, std::size_t count) {
      alignas(64) std::uint8_t digits[kBlock];
      const std::size_t bytes = packed_bytes(count);
      if (scale > 0) {
        const float* from = x.data() + begin;
        for_rounding(from, count, begin, call,
                     [&](std::size_t done, const std::uint32_t* words, std::size_t some) {
                       kernels().ternarize(from + done, words, scale, digits + done, some);
                     });
        std::fill(digits + count, digits + kDigits * bytes, std::uint8_t{0});
      } else {  // 0 or NaN
        std::fill_n(digits, kDigits * bytes, std::uint8_t{0});
      }
      pack(digits, out.data() + kHead + kBlockBytes * block, bytes);
      if (residual != nullptr) {
        for (std::size_t i = 0; i < count; ++i) digits[i] = level_of(digits[i]);
        kernels().scale_levels_add(digits, scale, -1.0f, residual + begin, count);
      }
    });
    *written = max_encoded_size(x.size());
    return {};
  }

  Status check(Span<const std::uint8_t> in, const Call&, std::size_t n) const override {
    GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
    std::uint8_t highest = 0;
    for (std::size_t i = kHead; i < in.size(); ++i) highest = std::max(highest, in[i]);
    if (highest >= kByteValues) {
      return wire_error("a byte of " + std::to_string(highest) + " is not five ternary digits");
    }
    const std::size_t tail = n % kBlock;
    const std::size_t bytes = packed_bytes(tail);
    std::uint8_t levels[kBlock];
    unpack(in.data() + in.size() - bytes, levels, bytes);
    for (std::size_t i = tail; i < kDigits * bytes; ++i) {
      if (levels[i] != 0) {
        return wire_error("the digits beyond the last of " + std::to_string(n) +
                          " elements are not 0");
      }
    }
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    GRADCOMP_TRY(check(in, call, y.size()));
    const auto scale = load<float>(in.data());
    for_blocks(y.size(), kBlock, [&](std::size_t block, std::size_t begin, std::size_t count) {
      alignas(64) std::uint8_t levels[kBlock];
      unpack(in.data() + kHead + kBlockBytes * block, levels, packed_bytes(count));
      kernels().scale_levels(levels, scale, y.data() + begin, count);
    });
    return {};
  }

  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const override {
    GRADCOMP_TRY(check(in, call, n));
    opened->unit = kBlock;
    opened->add = [in](std::size_t begin, std::size_t count, float weight, float* acc) {
      const auto scale = load<float>(in.data());
      for (std::size_t done = 0; done < count; done += kBlock) {
        alignas(64) std::uint8_t levels[kBlock];
        const std::size_t some = std::min(count - done, kBlock);
        const std::size_t block = (begin + done) / kBlock;
        unpack(in.data() + kHead + kBlockBytes * block, levels, packed_bytes(some));
        kernels().scale_levels_add(levels, scale, weight, acc + done, some);
      }
    };
    return {};
  }

 private:
  // Largest magnitude after clipping; NaN if an element is not finite.
  Status find_scale(Span<const float> x, const Call& call, float* scale) const {
    const std::size_t n = x.size();
    Span<ChunkStatistics> chunks = call.scratch->get<ChunkStatistics>(0, chunk_count(n) + 1);
    if (chunks.empty()) return capacity_error("out of memory while finding a scale");
    for_chunks(n, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
      const float* from = x.data() + begin;
      correct(call, begin, end);
      chunks[chunk].largest = kernels().max_magnitude(from, end - begin);
      if (clip_ > 0) chunks[chunk].moments = kernels().moments(from, end - begin);
    });
    std::uint32_t largest = 0;
    Moments total{0, 0};
    for (std::size_t i = 0; i < chunk_count(n); ++i) {
      largest = std::max(largest, chunks[i].largest);
      if (clip_ > 0) {
        total.sum += chunks[i].moments.sum;
        total.squares += chunks[i].moments.squares;
      }
    }
    *scale = largest >= kInfBits ? bits_float(kNanBits) : bits_float(largest);
    if (clip_ > 0 && *scale > 0) {
      const double mean = total.sum / static_cast<double>(n);
      const double variance = total.squares / static_cast<double>(n) - mean * mean;
      const double bound = clip_ * std::sqrt(variance > 0 ? variance : 0.0);
      if (bound < static_cast<double>(*scale)) *scale = static_cast<float>(bound);
    }
    return {};
  }

  double clip_;
};

}  // namespace

StageInfo terngrad_stage() {
  StageInfo stage;
  stage.name = "terngrad";
  stage.id = 12;
  stage.summary =
      "at random, 0 or the largest magnitude with the element's sign, in 1.6 bits; unbiased with "
      "clip=0";
  stage.paper =
      "Wen et al.: TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep "
      "Learning, NeurIPS 2017, sections 3.1 and 4 (gradient clipping)";
  stage.nonfinite = "an element that is not finite makes the whole tensor NaN";
  stage.example = "terngrad";
  stage.params = {
      real_param("clip", "2.5", 0, 1e6,
                 "magnitudes are clipped to this many standard deviations; 0: no clipping")};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<TernGrad>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
