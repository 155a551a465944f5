// Entropy-coded polar quantization: every element becomes a point of a half-integer lattice. A
// polar code selects one half of the points; the index within that half is coded with rANS.
//
// docs/wire-format.md#polar_ec is the norm.
#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/polar/polar_codec.hpp"
#include "codecs/polar/polar_ec_encoder.hpp"
#include "codecs/polar/polar_ec_payload.hpp"
#include "codecs/polar/thread_space.hpp"
#include "coding/digits.hpp"
#include "kernels/kernels.hpp"
#include "polar/block_coder.hpp"

namespace gradcomp {
namespace {

// Working memory of one thread.
struct DecodeSpace {
  DecodeSpace(Carver& carver, const PolarEcLayout& layout, bool whole_blocks)
      : floats(carver.take<float>(
            whole_blocks ? kLanes * layout.max_rows()
                         : std::min(kLanes * layout.max_rows(), Rotation::kMaxTile + 1))),
        bits(carver.take<std::uint64_t>(layout.max_rows())),
        mask(carver.take<std::uint64_t>(layout.max_rows())),
        indices(carver.take<std::uint8_t>(2 * kRotationBlock)) {}

  float* floats;
  std::uint64_t* bits;
  std::uint64_t* mask;
  std::uint8_t* indices;  // of a tile
};

class PolarEc final : public PolarCodec<PolarEc> {
 public:
  explicit PolarEc(const Recipe& recipe) : PolarCodec(recipe), encoder_(params_, trees_) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.decodes_slowly = true;
    caps.seeded = true;
    caps.private_noise = true;
    caps.finite = !params_.rotated;  // magnitudes above 2^84 may become NaN
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return n < kMinPolarNumel ? 4 * n : layout(n).max_size();
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    if (n < kMinPolarNumel) {
      encode_small(x, out, written);
      return {};
    }
    return encoder_.encode(layout(n), x, call, out.data(), written);
  }

 private:
  friend PolarCodec<PolarEc>;

  PolarEcLayout layout(std::size_t n) const { return {n, polar_block_log2(params_.n, n)}; }

  // Writes the elements [begin, end) of the segment, still rotated. `symbols` are the packed
  // indices of the whole tensor.
  void points(const PolarEcLayout& layout, const Segment& segment, const std::uint8_t* scales,
              const std::vector<DigitsChunk>& chunks, const std::uint8_t* symbols,
              Span<const Outlier> outliers, const DecodeSpace& space, std::size_t begin,
              std::size_t end, float* y) const {
    for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
      std::size_t first = std::max(begin, kLanes * block.begin);
      const std::size_t last = std::min(end, std::min(kLanes * block.end, layout.numel()));
      const float scale = load<float>(scales + 4 * index);
      while (first < last) {
        const std::size_t chunk = first / layout.chunk();
        const std::size_t from = first - layout.chunk() * chunk;
        const std::size_t size =
            std::min({last - first, layout.chunk() - from, std::size_t{kRotationBlock}});
        const unsigned width = chunks[chunk].width;
        unpack_digits(symbols + layout.chunk() * chunk + from * width / 8, width, space.indices,
                      size);
        kernels().polar->lattice_points(space.indices,
                                        space.bits + (first / kLanes - segment.begin), scale,
                                        y + (first - begin), size);
        first += size;
      }
    });
    const Outlier* one = std::lower_bound(
        outliers.begin(), outliers.end(), begin,
        [](const Outlier& outlier, std::size_t position) { return outlier.at < position; });
    for (; one != outliers.end() && one->at < end; ++one) y[one->at - begin] = one->value;
  }

  template <typename Place, typename Sink>
  Status decode_segments(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                         const Place& place, const Sink& sink) const {
    const PolarEcLayout layout = this->layout(n);
    if (in.size() < layout.digits_at()) {
      return wire_error("the payload has " + std::to_string(in.size()) +
                        " bytes; the scales and words of " + std::to_string(n) +
                        " elements alone have " + std::to_string(layout.digits_at()));
    }
    const Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kPolarEcSymbolSlot, n);
    if (symbols.empty()) return capacity_error("out of memory while decoding indices");
    std::vector<DigitsChunk> chunks;
    Span<const std::uint8_t> rest;
    GRADCOMP_TRY(read_chunks(layout, in, &chunks, symbols.data(), &rest));
    Span<const Outlier> outliers;
    GRADCOMP_TRY(read_outliers(rest, n, call, &outliers));
    const Rotation rotation(n, call.stream);
    const std::uint8_t* const scales = in.data();
    return for_each_with_space<DecodeSpace>(
        layout.segments(), call,
        [&](std::size_t index, DecodeSpace& space) {
          const Segment segment = layout.segment(index);
          for_blocks(layout, segment, [&](std::size_t, const Block& block) {
            polar_decode(trees_.of(block), block.log2,
                         in.data() + layout.words_at() + 8 * lattice_words(block.begin),
                         space.bits + (block.begin - segment.begin));
          });
          draw_mask(segment, rotation.stream(), space.mask);
          kernels().polar->xor_words(space.bits, space.mask, segment.end - segment.begin);
          const auto fill = [&](std::size_t begin, std::size_t end, float* y) {
            points(layout, segment, scales, chunks, symbols.data(), outliers, space, begin, end, y);
          };
          expand(layout, segment, rotation, scales, space.floats, fill, place, sink);
        },
        layout, params_.unbiased);
  }

  PolarEcTrees trees_;
  PolarEcEncoder encoder_;
};

}  // namespace

StageInfo polar_ec_stage() {
  StageInfo stage = polar_family_stage(
      real_param("rate", "1", 0.5, 4, "bits per element on the wire, within 2 %, all included"));
  stage.name = "polar_ec";
  stage.id = 27;
  stage.summary =
      "lattice points, selected by polar codes and entropy-coded indices, at 0.5 to 4 bits per "
      "element: within 0.3 dB of the least error of any code of that rate on normal values";
  stage.paper =
      "Korada, Urbanke: Polar Codes are Optimal for Lossy Source Coding, IEEE Trans. Inf. Theory "
      "2010; entropy coding of cosets: Fischer, Wang: Entropy-Constrained Trellis-Coded "
      "Quantization, IEEE Trans. Inf. Theory 1992";
  stage.example = "polar_ec(rate=1)";
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<PolarEc>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
