// Polar codes as a vector quantizer: every element becomes its scale with a sign. The signs of a
// block are a codeword of 64 interleaved polar codes, of which rate * n bits are sent. Random signs
// stand between the elements and the codes: a code of few words describes a small subspace, so
// error feedback needs another one in each step.
//
// The tensor is cut into segments, each a block and a scale; docs/wire-format.md#polar_b is the
// norm. Encoding is successive-cancellation decoding of the elements as log-likelihood ratios.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bytes.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/polar/polar_b_space.hpp"
#include "codecs/polar/polar_codec.hpp"
#include "kernels/kernels.hpp"
#include "polar/bec_order.hpp"
#include "polar/block_coder.hpp"
#include "polar/list_coder.hpp"

namespace gradcomp {
namespace {

class PolarB final : public PolarCodec<PolarB> {
 public:
  explicit PolarB(const Recipe& recipe) : PolarCodec(recipe) {
    const unsigned top = polar_block_log2(params_.n, kMaxNumel);
    const auto erasure = static_cast<std::uint32_t>(std::llround((1 - params_.rate) * 0x1p31));
    for (unsigned log2 = 0; log2 <= top; ++log2) {
      ranks_.push_back(bec_ranks(log2, erasure, std::size_t{1} << log2));
    }
    for (std::size_t rows = 1; rows <= kTileRows; ++rows) {
      const unsigned log2 = rows == 1 ? 0 : floor_log2(rows - 1) + 1;
      short_ranks_.push_back(bec_ranks(log2, erasure, rows));
    }
  }

  Caps caps() const noexcept override {
    Caps caps;
    caps.fuses_feedback = true;
    caps.seeded = true;
    caps.private_noise = true;
    caps.finite = !params_.rotated;  // magnitudes above 2^84 may become NaN
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return n < kMinPolarNumel ? 4 * n : layout(n).payload_size();
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    float* const residual = residual_of(call);
    if (n < kMinPolarNumel) {
      correct(call, 0, n);
      encode_small(x, out, written);
      if (residual != nullptr) kernels().f32_add(out.data(), -1.0f, residual, n);
      return {};
    }
    const PolarBLayout layout = this->layout(n);
    const Rotation rotation(n, call.stream);
    GRADCOMP_TRY(for_segments(layout, call, [&](const Segment& segment, PolarBSpace& space) {
      correct(call, kLanes * segment.begin, std::min(kLanes * segment.end, n));
      encode_segment(layout, segment, rotation, x.data(), space, out.data());
      if (residual == nullptr) return;
      expand_signs(
          layout, segment, rotation, out.data(), space,
          [](std::size_t, float* buffer) { return buffer; },
          [&](std::size_t first, const float* sent, std::size_t size) {
            kernels().f32_add(reinterpret_cast<const std::uint8_t*>(sent), -1.0f, residual + first,
                              size);
            // If a sign is wrong, the difference of the largest floats overflows.
            if (!(std::fabs(sent[0]) < kMaxRotatedScale)) {
              kernels().zero_nonfinite(residual + first, size);
            }
          });
    }));
    *written = layout.payload_size();
    return {};
  }

 private:
  friend PolarCodec<PolarB>;

  PolarBLayout layout(std::size_t n) const {
    return {n, polar_block_log2(params_.n, n), params_.rate, kFrameBytes + kFrameStream};
  }

  // Calls fn(segment, space) for all segments, on all threads.
  template <typename Fn>
  Status for_segments(const PolarBLayout& layout, const Call& call, const Fn& fn) const {
    return for_each_with_space<PolarBSpace>(
        layout.segments(), call,
        [&](std::size_t index, PolarBSpace& space) { fn(layout.segment(index), space); },
        layout.max_rows(), params_.best);
  }

  const SubtreeKind* tree(const Block& block, std::size_t words, PolarBSpace& space) const {
    const std::size_t rows = block.end - block.begin;
    const bool whole = rows == std::size_t{1} << block.log2;
    return space.tree(rows, words, [&](SubtreeKind* made) {
      const auto& ranks = whole ? ranks_[block.log2] : short_ranks_[rows - 1];
      find_subtree_kinds(ranks.data(), block.log2, words, made);
    });
  }

  float llr_factor(const PolarBLayout& layout, const Block& block, double rms) const {
    return static_cast<float>(llr_per_rms() /
                              (rms * std::sqrt(params_.spread_gain(layout, block))));
  }

  // Fills space.llr from the elements, after the rotations if there are any. Returns approximately
  // the sum of the squares of the ratios before they are limited.
  double make_llr(const PolarBLayout& layout, const Segment& segment, const Rotation& rotation,
                  const float* x, double rms, PolarBSpace& space) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    double squares = 0;
    const auto quantize = [&](const float* v, std::size_t first, std::size_t size, float factor) {
      squares += static_cast<double>(kernels().polar->quantize(v, space.mask + first / kLanes,
                                                               factor, space.llr + first, size));
    };
    std::memset(space.llr + count, 0, kLanes * (segment.end - segment.begin) - count);
    const float factor = llr_factor(layout, layout.block(segment.first_block), rms);
    if (!params_.rotated) {
      quantize(x + begin, 0, count, factor);
      return squares;
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile) - begin;
      float* const v = params_.unbiased ? space.floats + first : space.floats;
      rotation.forward(tile, x + begin + first, v);
      if (!params_.unbiased) quantize(v, first, rotation.tile_size(tile), factor);
    });
    if (params_.unbiased) {
      spread(space.floats, begin / kRotationBlock, count / kRotationBlock, rotation.stream());
      for_blocks(layout, segment, [&](std::size_t, const Block& block) {
        const std::size_t first = kLanes * block.begin - begin;
        quantize(space.floats + first, first, layout.elements(block),
                 llr_factor(layout, block, rms));
      });
    }
    return squares;
  }

  // Writes the segment's scales and words to the payload, and leaves the signs in space.bits.
  void encode_segment(const PolarBLayout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, PolarBSpace& space, std::uint8_t* payload) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    draw_mask(segment, rotation.stream(), space.mask);
    std::uint8_t* const words = payload + 4 * layout.blocks();
    const auto rms_of = [&](double squares) {
      return std::sqrt(squares / static_cast<double>(count));
    };
    // Rounding may take the root mean square of the largest floats beyond them.
    const auto usable = [&](double rms) {
      return rms >= kMinPolarRms && (params_.rotated ? rms <= max_scale() : std::isfinite(rms));
    };
    // Ratios need not be exact: a sample saves a pass over memory, if it proves right.
    double rms = rms_of(sample_squares(x + begin, count));
    double found = 0;
    if (usable(rms)) found = make_llr(layout, segment, rotation, x, rms, space);
    const double expected = llr_per_rms() * llr_per_rms() * static_cast<double>(count);
    bool coded = found >= 0.5 * expected && found <= 2 * expected;  // false for NaN
    if (!coded) {
      rms = rms_of(kernels().sum_squares(x + begin, count));
      coded = usable(rms);
      if (coded) make_llr(layout, segment, rotation, x, rms, space);
    }
    for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
      const std::size_t size = layout.words(index, block);
      std::uint8_t* const out = words + 8 * layout.first_word(index, block.begin);
      const std::size_t at = block.begin - segment.begin;
      float scale = rms < kMinPolarRms ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      if (coded) {
        scale = encode_block(layout, block, rms, size, at, space, out);
      } else {
        std::memset(out, 0, 8 * size);
        std::fill(space.bits + at, space.bits + at + (block.end - block.begin), std::uint64_t{0});
      }
      store(payload + 4 * index, scale);
    });
  }

  // Returns the scale. `at` is the block's first row in the segment.
  float encode_block(const PolarBLayout& layout, const Block& block, double rms, std::size_t words,
                     std::size_t at, PolarBSpace& space, std::uint8_t* out) const {
    const std::size_t rows = block.end - block.begin;
    std::int8_t* const llr = space.llr + kLanes * at;
    // Rows of the code beyond the block may have any value.
    std::memset(llr + kLanes * rows, 0, kLanes * ((std::size_t{1} << block.log2) - rows));
    const SubtreeKind* const kinds = tree(block, words, space);
    if (params_.best) {
      polar_list_encode(kinds, block.log2, llr, {space.list_llr, space.work, space.list_bits},
                        space.bits + at, out);
    } else {
      polar_encode(kinds, block.log2, llr, space.work, space.bits + at, out);
    }
    const std::int32_t agreement = kernels().polar->agreement(llr, space.bits + at, rows);
    if (agreement <= 0) return 0.0f;
    const auto elements = static_cast<double>(layout.elements(block));
    const double product =
        static_cast<double>(agreement) / static_cast<double>(llr_factor(layout, block, rms));
    double scale = product / elements;
    if (params_.unbiased) {
      const double squares =
          kernels().sum_squares(space.floats + kLanes * at, layout.elements(block));
      scale = squares / (product * params_.spread_gain(layout, block));
    }
    if (!params_.rotated) scale = std::min(scale, max_scale());  // beyond it by rounding only
    return scale <= max_scale() ? static_cast<float>(scale)
                                : std::numeric_limits<float>::quiet_NaN();
  }

  double max_scale() const {
    return static_cast<double>(params_.rotated ? kMaxRotatedScale
                                               : std::numeric_limits<float>::max());
  }

  // Approximate sum of squares. Large segments: from 512 of every 16384 elements, at changing
  // positions.
  static double sample_squares(const float* x, std::size_t count) {
    constexpr std::size_t kRun = 512;
    constexpr std::size_t kShare = 32;
    if (count < 2 * kRun * kShare) return kernels().sum_squares(x, count);
    const std::size_t runs = count / (kShare * kRun);
    double squares = 0;
    for (std::size_t i = 0; i < runs; ++i) {
      squares += kernels().sum_squares(x + kRun * (kShare * i + 5 * i % kShare), kRun);
    }
    return squares * static_cast<double>(count) / static_cast<double>(runs * kRun);
  }

  // Log-likelihood ratio of an element of the root mean square: large enough that rounding costs
  // nothing, small enough that min-sum stays close to exact decoding.
  double llr_per_rms() const {
    return params_.rate <= 0.25 ? 12.0 : 12.0 + 16.0 * (params_.rate - 0.25);
  }

  // Writes the elements [begin, end) of the segment from space.bits, still rotated.
  static void signs(const PolarBLayout& layout, const Segment& segment, const std::uint8_t* scales,
                    const PolarBSpace& space, std::size_t begin, std::size_t end, float* y) {
    for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
      const std::size_t first = std::max(begin, kLanes * block.begin);
      const std::size_t last = std::min(end, kLanes * block.end);
      if (first >= last) return;
      const auto* const bits = reinterpret_cast<const std::uint8_t*>(space.bits);
      const float scale = load<float>(scales + 4 * index);
      kernels().select_bits(bits + (first / 8 - 8 * segment.begin), scale, -scale,
                            y + (first - begin), last - first);
    });
  }

  // Calls sink() for the segment's decoded elements, as PolarCodec::expand() does, from space.bits.
  template <typename Place, typename Sink>
  void expand_signs(const PolarBLayout& layout, const Segment& segment, const Rotation& rotation,
                    const std::uint8_t* scales, PolarBSpace& space, const Place& place,
                    const Sink& sink) const {
    kernels().polar->xor_words(space.bits, space.mask, segment.end - segment.begin);
    const auto fill = [&](std::size_t begin, std::size_t end, float* y) {
      signs(layout, segment, scales, space, begin, end, y);
    };
    expand(layout, segment, rotation, scales, space.floats, fill, place, sink);
  }

  template <typename Place, typename Sink>
  Status decode_segments(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                         const Place& place, const Sink& sink) const {
    const PolarBLayout layout = this->layout(n);
    GRADCOMP_TRY(check_payload_size(in, layout.payload_size(), n));
    const Rotation rotation(n, call.stream);
    const std::uint8_t* const words = in.data() + 4 * layout.blocks();
    return for_segments(layout, call, [&](const Segment& segment, PolarBSpace& space) {
      for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
        polar_decode(tree(block, layout.words(index, block), space), block.log2,
                     words + 8 * layout.first_word(index, block.begin),
                     space.bits + (block.begin - segment.begin));
      });
      draw_mask(segment, rotation.stream(), space.mask);
      expand_signs(layout, segment, rotation, in.data(), space, place, sink);
    });
  }

  std::vector<std::vector<std::uint16_t>> ranks_;        // of whole codes, by log2
  std::vector<std::vector<std::uint16_t>> short_ranks_;  // of codes cut short, by rows - 1
};

}  // namespace

StageInfo polar_b_stage() {
  StageInfo stage = polar_family_stage(real_param(
      "rate", "0.25", 0.03125, 0.5, "bits per element on the wire, scales and frame included"));
  stage.name = "polar_b";
  stage.id = 33;  // 26 had payloads without random signs
  stage.summary =
      "signs that form codewords of polar codes, at 1/32 to 1/2 bit per element: close to the "
      "least error of any code of that rate on normal values";
  stage.paper =
      "Korada, Urbanke: Polar Codes are Optimal for Lossy Source Coding, IEEE Trans. Inf. Theory "
      "2010; the scale of unbiased=true: Vargaftik et al.: EDEN, ICML 2022, section 3";
  stage.example = "polar_b(rate=0.25)";
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<PolarB>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
