// Payload: float32 norms, one per bucket; the coded upper 8 bits of all symbols; their lower bits.
#include "codecs/quantize/wide_qsgd.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "coding/bits.hpp"
#include "coding/levels.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kWords = 1024;  // random words at a time
constexpr std::size_t kUpperSlot = 0;
constexpr std::size_t kSymbolSlot = 1;
constexpr unsigned kUpperBits = 8;

class WideQsgd final : public Codec {
 public:
  WideQsgd(const Recipe& recipe, Norm norm)
      : levels_(static_cast<std::uint32_t>(recipe.params.integer("levels"))),
        lower_bits_(symbol_bits(2 * levels_) - kUpperBits),
        norms_{static_cast<std::size_t>(recipe.params.integer("bucket")), norm},
        coder_(LevelCoder::named(recipe.coder_name("packed"))) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.private_noise = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return 4 * norms_.buckets(n) + coder_.max_bytes(n, kUpperBits) + lower_bytes(n);
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    Span<std::uint8_t> upper = call.scratch->get<std::uint8_t>(kUpperSlot, n + 1);
    Span<std::uint32_t> symbols = call.scratch->get<std::uint32_t>(kSymbolSlot, n + 1);
    if (upper.empty() || symbols.empty()) {
      return capacity_error("out of memory while encoding levels");
    }
    const std::size_t buckets = norms_.buckets(n);
    for_parts(buckets, part_count(buckets), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; ++begin) store(out.data() + 4 * begin, norms_.bucket_norm(x, begin));
    });
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      alignas(64) std::uint32_t words[kWords];
      for (; begin < end; begin += kWords) {
        const std::size_t stop = std::min(begin + kWords, end);
        kernels().rounding_words(call.stream, begin, words, stop - begin, x.data() + stop);
        for (std::size_t i = begin; i < stop; ++i) {
          const auto norm = load<float>(out.data() + 4 * (i / norms_.bucket));
          symbols[i] = symbol_of(x[i], norm, words[i - begin]);
          upper[i] = static_cast<std::uint8_t>(symbols[i] >> lower_bits_);
        }
      }
    });
    std::uint8_t* const coded = out.data() + 4 * buckets;
    std::uint8_t* const lower = coded + coder_.encode({upper.data(), n}, kUpperBits, coded);
    BitWriter writer(lower);
    for (std::size_t i = 0; i < n; ++i) {
      writer.put(symbols[i] & ((1u << lower_bits_) - 1), lower_bits_);
    }
    *written = static_cast<std::size_t>(lower - out.data()) + writer.finish();
    return {};
  }

  Status check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const override {
    Span<const std::uint32_t> symbols;
    return read(in, call, n, &symbols);
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    return each_value(in, call, y.size(), [&](std::size_t i, float value) { y[i] = value; });
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    return each_value(in, call, acc.size(),
                      [&](std::size_t i, float value) { acc[i] += weight * value; });
  }

 private:
  std::size_t lower_bytes(std::size_t n) const noexcept { return bit_bytes(n * lower_bits_); }

  std::uint32_t symbol_of(float x, float norm, std::uint32_t word) const noexcept {
    if (!(norm > 0)) return 0;
    const double scale = static_cast<double>(levels_) * 0x1p24 / static_cast<double>(norm);
    const auto fixed = static_cast<std::uint64_t>(std::fabs(static_cast<double>(x)) * scale);
    const std::uint64_t level = std::min<std::uint64_t>((fixed + (word >> 8)) >> 24, levels_);
    if (level == 0) return 0;
    return static_cast<std::uint32_t>(2 * level) - (float_bits(x) >> 31);
  }

  Status read(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              Span<const std::uint32_t>* symbols) const {
    GRADCOMP_TRY(norms_.check(in, n));
    const std::size_t head = 4 * norms_.buckets(n);
    if (in.size() - head < lower_bytes(n)) {
      return wire_error("the payload has " + std::to_string(in.size()) +
                        " bytes; norms and lower " + "bits of " + std::to_string(n) +
                        " elements have " + std::to_string(head + lower_bytes(n)));
    }
    Span<std::uint8_t> upper = call.scratch->get<std::uint8_t>(kUpperSlot, n + 1);
    Span<std::uint32_t> decoded = call.scratch->get<std::uint32_t>(kSymbolSlot, n + 1);
    if (upper.empty() || decoded.empty()) {
      return capacity_error("out of memory while decoding levels");
    }
    const std::size_t middle = in.size() - lower_bytes(n);
    GRADCOMP_TRY(coder_.decode({in.data() + head, middle - head}, kUpperBits, {upper.data(), n}));
    BitReader reader({in.data() + middle, lower_bytes(n)});
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      decoded[i] = std::uint32_t{upper[i]} << lower_bits_ | reader.get(lower_bits_);
      largest = std::max(largest, decoded[i]);
    }
    if (!reader.finished()) return wire_error("padding bits after the levels are not 0");
    if (largest > 2 * levels_) {
      return wire_error("level symbol " + std::to_string(largest) + "; " + std::to_string(levels_) +
                        " levels have symbols up to " + std::to_string(2 * levels_));
    }
    *symbols = {decoded.data(), n};
    return {};
  }

  template <typename Sink>
  Status each_value(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                    const Sink& sink) const {
    Span<const std::uint32_t> symbols;
    GRADCOMP_TRY(read(in, call, n, &symbols));
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      while (begin < end) {
        const std::size_t bucket = begin / norms_.bucket;
        const std::size_t stop = std::min(end, (bucket + 1) * norms_.bucket);
        const float unit = load<float>(in.data() + 4 * bucket) / static_cast<float>(levels_);
        for (; begin < stop; ++begin) {
          const auto half = static_cast<std::int32_t>((symbols[begin] + 1) / 2);
          const std::int32_t level = symbols[begin] % 2 == 0 ? half : -half;
          sink(begin, unit * static_cast<float>(level));
        }
      }
    });
    return {};
  }

  std::uint32_t levels_;
  unsigned lower_bits_;
  BucketNorms norms_;
  LevelCoder coder_;
};

}  // namespace

std::unique_ptr<Codec> make_wide_qsgd(const Recipe& recipe, Norm norm) {
  return std::make_unique<WideQsgd>(recipe, norm);
}

}  // namespace gradcomp
