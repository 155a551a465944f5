// Polar codes as a vector quantizer: every element becomes its scale with a sign, and the signs of
// a block are a codeword of 64 interleaved polar codes, of which rate * n bits are sent.
//
// The tensor is cut into segments, each a block and a scale; docs/wire-format.md#polar_b is the
// norm. Encoding is successive-cancellation decoding of the elements as log-likelihood ratios.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.hpp"
#include "base/thread_pool.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/polar/blocks.hpp"
#include "coding/rotation.hpp"
#include "kernels/kernels.hpp"
#include "polar/bec_order.hpp"
#include "polar/block_coder.hpp"
#include "polar/list_coder.hpp"

namespace gradcomp {
namespace {

// How a tensor is cut, and how many words each part gets.
class Layout : public BlockCut {
 public:
  // `overhead` is what a frame has besides the payload.
  Layout(std::size_t n, unsigned log2, double rate, std::size_t overhead) : BlockCut(n, log2) {
    const double bytes = std::floor(rate * static_cast<double>(n) / 8) -
                         static_cast<double>(overhead + 4 * blocks());
    const double words = std::floor(bytes / 8);
    words_ = words < 1 ? 1 : static_cast<std::size_t>(words);
  }

  std::size_t payload_size() const { return 4 * blocks() + 8 * words_; }
  std::size_t first_word(std::size_t row) const { return words_ * row / rows(); }
  std::size_t words(const Block& block) const {
    return first_word(block.end) - first_word(block.begin);
  }

 private:
  std::size_t words_;
};

// What one thread works with; in the call's scratch.
class Workspace {
 public:
  // With `best`, there is room for what polar_list_encode() works with.
  static std::size_t bytes(std::size_t rows, bool best) {
    return ((sizeof(float) + 2) * kLanes + 2 * sizeof(std::uint64_t) + kNodeSlots * 2 +
            (best ? kLanes + sizeof(std::uint64_t) : 0)) *
           rows;
  }

  Workspace(std::uint8_t* memory, std::size_t rows, bool best)
      : floats(reinterpret_cast<float*>(memory)),
        llr(reinterpret_cast<std::int8_t*>(floats + kLanes * rows)),
        work(llr + kLanes * rows),
        bits(reinterpret_cast<std::uint64_t*>(work + kLanes * rows)),
        mask(bits + rows) {
    std::uint64_t* end = mask + rows;
    if (best) {
      list_bits = end;
      list_llr = reinterpret_cast<std::int8_t*>(end + rows);
      end += rows + kLanes / sizeof(std::uint64_t) * rows;
    }
    Node* nodes = reinterpret_cast<Node*>(end);
    for (NodeSlot& slot : slots_) {
      slot.nodes = nodes;
      nodes += 2 * rows;
    }
  }

  // `make(nodes)` fills the nodes of a block of so many rows and words, if those are not at hand.
  template <typename Make>
  const Node* nodes(std::size_t rows, std::size_t words, const Make& make) {
    // Full blocks have one of two neighbouring numbers of words.
    NodeSlot& slot = slots_[words % kNodeSlots];
    if (slot.rows != rows || slot.words != words) {
      make(slot.nodes);
      slot.rows = rows;
      slot.words = words;
    }
    return slot.nodes;
  }

  float* floats;  // of the segment, rotated
  std::int8_t* llr;
  std::int8_t* work;
  std::uint64_t* bits;
  std::uint64_t* mask;
  std::uint64_t* list_bits = nullptr;
  std::int8_t* list_llr = nullptr;

 private:
  static constexpr std::size_t kNodeSlots = 2;
  struct NodeSlot {
    std::size_t rows = 0;  // none
    std::size_t words = 0;
    Node* nodes = nullptr;
  };
  NodeSlot slots_[kNodeSlots];
};

class PolarB final : public PolarCodec<PolarB> {
 public:
  explicit PolarB(const Recipe& recipe)
      : rate_(recipe.params.real("rate")),
        n_(recipe.params.choice("n")),
        unbiased_(recipe.params.boolean("unbiased")),
        rotated_(recipe.transform != nullptr || unbiased_),
        best_(recipe.params.has("preset")) {
    const unsigned top = polar_block_log2(n_, kMaxNumel);
    const auto erasure = static_cast<std::uint32_t>(std::llround((1 - rate_) * 0x1p31));
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
    caps.seeded = rotated_;
    caps.private_noise = rotated_;
    caps.finite = !rotated_;  // magnitudes above 2^84 may become NaN
    return caps;
  }

  bool fuses_feedback() const noexcept override { return true; }

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
    const Layout layout = this->layout(n);
    const Rotation rotation(n, call.stream);
    GRADCOMP_TRY(for_segments(layout, call, [&](const Segment& segment, Workspace& space) {
      correct(call, kLanes * segment.begin, std::min(kLanes * segment.end, n));
      encode_segment(layout, segment, rotation, x.data(), space, out.data());
      if (residual == nullptr) return;
      expand(
          layout, segment, rotation, out.data(), space,
          [](std::size_t, float* buffer) { return buffer; },
          [&](std::size_t first, const float* sent, std::size_t size) {
            kernels().f32_add(reinterpret_cast<const std::uint8_t*>(sent), -1.0f, residual + first,
                              size);
            // A sign may be wrong, and then the largest floats overflow.
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

  Layout layout(std::size_t n) const {
    return {n, polar_block_log2(n_, n), rate_, kFrameBytes + (rotated_ ? kFrameStream : 0)};
  }

  // Calls fn(segment, workspace) for all segments, in parallel.
  template <typename Fn>
  Status for_segments(const Layout& layout, const Call& call, const Fn& fn) const {
    const std::size_t units = layout.segments() * kChunk;
    const std::size_t ranges = range_count(units);
    const std::size_t rows = layout.max_rows();
    const std::size_t each = (Workspace::bytes(rows, best_) + 63) / 64 * 64;
    const Span<std::uint8_t> memory = call.scratch->get<std::uint8_t>(0, ranges * each);
    if (memory.empty()) return capacity_error("out of memory while coding blocks");
    for_ranges(units, ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
      Workspace space(memory.data() + range * each, rows, best_);
      for (std::size_t index = begin / kChunk; index < end / kChunk; ++index) {
        fn(layout.segment(index), space);
      }
    });
    return {};
  }

  const Node* nodes(const Block& block, std::size_t words, Workspace& space) const {
    const std::size_t rows = block.end - block.begin;
    const bool whole = rows == std::size_t{1} << block.log2;
    return space.nodes(rows, words, [&](Node* made) {
      const auto& ranks = whole ? ranks_[block.log2] : short_ranks_[rows - 1];
      make_nodes(ranks.data(), block.log2, words, made);
    });
  }

  // How much larger, squared, the second rotation makes elements.
  double spread_gain(const Layout& layout, const Block& block) const {
    const std::size_t tiles = layout.elements(block) / kRotationBlock;
    return unbiased_ && tiles > 1 ? static_cast<double>(tiles) : 1.0;
  }

  float llr_factor(const Layout& layout, const Block& block, double rms) const {
    return static_cast<float>(llr_per_rms() / (rms * std::sqrt(spread_gain(layout, block))));
  }

  // Fills space.llr from the elements, rotated if they are to be. Returns about the sum of the
  // squares of the ratios, before they are limited.
  double make_llr(const Layout& layout, const Segment& segment, const Rotation& rotation,
                  const float* x, double rms, Workspace& space) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    double squares = 0;
    const auto quantize = [&](const float* v, std::size_t first, std::size_t size, float factor) {
      squares += static_cast<double>(kernels().polar->quantize(v, factor, space.llr + first, size));
    };
    std::memset(space.llr + count, 0, kLanes * (segment.end - segment.begin) - count);
    const float factor = llr_factor(layout, layout.block(segment.first_block), rms);
    if (!rotated_) {
      quantize(x + begin, 0, count, factor);
      return squares;
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile) - begin;
      float* const v = unbiased_ ? space.floats + first : space.floats;
      rotation.forward(tile, x + begin + first, v);
      if (!unbiased_) quantize(v, first, rotation.tile_size(tile), factor);
    });
    if (unbiased_) {
      spread(space.floats, begin / kRotationBlock, count / kRotationBlock, rotation.stream());
      draw_mask(segment, rotation.stream(), space.mask);
      kernels().flip_signs(space.floats, reinterpret_cast<const std::uint32_t*>(space.mask), 1.0f,
                           space.floats, count);
      for_blocks(layout, segment, [&](std::size_t, const Block& block) {
        const std::size_t first = kLanes * block.begin - begin;
        quantize(space.floats + first, first, layout.elements(block),
                 llr_factor(layout, block, rms));
      });
    }
    return squares;
  }

  // Writes the segment's scales and words to the payload, and leaves the signs in space.bits.
  void encode_segment(const Layout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, Workspace& space, std::uint8_t* payload) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    std::uint8_t* const words = payload + 4 * layout.blocks();
    const auto rms_of = [&](double squares) {
      return std::sqrt(squares / static_cast<double>(count));
    };
    // Rounding may take the root mean square of the largest floats beyond them.
    const auto usable = [&](double rms) {
      return rms >= kMinPolarRms && (rotated_ ? rms <= max_scale() : std::isfinite(rms));
    };
    // Ratios need not be exact: a sample saves a pass over memory, if it turns out to be right.
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
      const std::size_t size = layout.words(block);
      std::uint8_t* const out = words + 8 * layout.first_word(block.begin);
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

  // Returns the scale. `at` is the block's first row in the workspace.
  float encode_block(const Layout& layout, const Block& block, double rms, std::size_t words,
                     std::size_t at, Workspace& space, std::uint8_t* out) const {
    const std::size_t rows = block.end - block.begin;
    std::int8_t* const llr = space.llr + kLanes * at;
    // What the code has beyond the block may be anything.
    std::memset(llr + kLanes * rows, 0, kLanes * ((std::size_t{1} << block.log2) - rows));
    const Node* const tree = nodes(block, words, space);
    if (best_) {
      polar_list_encode(tree, block.log2, llr, {space.list_llr, space.work, space.list_bits},
                        space.bits + at, out);
    } else {
      polar_encode(tree, block.log2, llr, space.work, space.bits + at, out);
    }
    const std::int32_t agreement = kernels().polar->agreement(llr, space.bits + at, rows);
    if (words == 0 || agreement <= 0) return 0.0f;
    const auto elements = static_cast<double>(layout.elements(block));
    const double product =
        static_cast<double>(agreement) / static_cast<double>(llr_factor(layout, block, rms));
    double scale = product / elements;
    if (unbiased_) {
      const double squares =
          kernels().sum_squares(space.floats + kLanes * at, layout.elements(block));
      scale = squares / (product * spread_gain(layout, block));
    }
    if (!rotated_) scale = std::min(scale, max_scale());  // beyond it by rounding only
    return scale <= max_scale() ? static_cast<float>(scale)
                                : std::numeric_limits<float>::quiet_NaN();
  }

  double max_scale() const {
    return static_cast<double>(rotated_ ? kMaxRotatedScale : std::numeric_limits<float>::max());
  }

  // About the sum of the squares: in large segments from 512 of every 16384 elements, at changing
  // places.
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

  // How large a log-likelihood ratio the root mean square is: large enough that rounding
  // costs nothing, small enough that min-sum stays close to exact decoding.
  double llr_per_rms() const { return rate_ <= 0.25 ? 12.0 : 12.0 + 16.0 * (rate_ - 0.25); }

  // The elements [begin, end) of the segment from space.bits, still rotated.
  static void signs(const Layout& layout, const Segment& segment, const std::uint8_t* scales,
                    const Workspace& space, std::size_t begin, std::size_t end, float* y) {
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

  // Calls sink(begin, values, count) for runs of decoded elements of the segment. `place(begin,
  // buffer)` says where they are decoded to.
  template <typename Place, typename Sink>
  void expand(const Layout& layout, const Segment& segment, const Rotation& rotation,
              const std::uint8_t* scales, Workspace& space, const Place& place,
              const Sink& sink) const {
    const std::size_t begin = kLanes * segment.begin;
    const std::size_t end = std::min(kLanes * segment.end, layout.numel());
    if (!rotated_) {
      for (std::size_t first = begin; first < end; first += kRotationBlock) {
        const std::size_t last = std::min(first + kRotationBlock, end);
        float* const v = place(first, space.floats);
        signs(layout, segment, scales, space, first, last, v);
        sink(first, v, last - first);
      }
      return;
    }
    bool usable = true;
    for_blocks(layout, segment, [&](std::size_t index, const Block&) {
      usable = usable && std::fabs(load<float>(scales + 4 * index)) <= kMaxRotatedScale;
    });
    if (unbiased_ && usable) {
      float* const v = place(begin, space.floats);
      draw_mask(segment, rotation.stream(), space.mask);
      kernels().polar->xor_words(space.bits, space.mask, segment.end - segment.begin);
      signs(layout, segment, scales, space, begin, end, v);
      gather(v, begin / kRotationBlock, (end - begin) / kRotationBlock, rotation.stream());
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile);
      const std::size_t size = rotation.tile_size(tile);
      float* const v = place(first, unbiased_ ? space.floats + (first - begin) : space.floats);
      if (!usable) {
        std::fill(v, v + size, std::numeric_limits<float>::quiet_NaN());
      } else {
        if (!unbiased_) signs(layout, segment, scales, space, first, first + size, v);
        rotation.inverse(tile, v);
      }
      sink(first, v, size);
    });
  }

  template <typename Place, typename Sink>
  Status decode_segments(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                         const Place& place, const Sink& sink) const {
    const Layout layout = this->layout(n);
    GRADCOMP_TRY(check_payload_size(in, layout.payload_size(), n));
    const Rotation rotation(n, call.stream);
    const std::uint8_t* const words = in.data() + 4 * layout.blocks();
    return for_segments(layout, call, [&](const Segment& segment, Workspace& space) {
      for_blocks(layout, segment, [&](std::size_t, const Block& block) {
        polar_decode(nodes(block, layout.words(block), space), block.log2,
                     words + 8 * layout.first_word(block.begin),
                     space.bits + (block.begin - segment.begin));
      });
      expand(layout, segment, rotation, in.data(), space, place, sink);
    });
  }

  double rate_;
  std::string n_;
  bool unbiased_;
  bool rotated_;
  bool best_;
  std::vector<std::vector<std::uint16_t>> ranks_;        // of whole codes, by log2
  std::vector<std::vector<std::uint16_t>> short_ranks_;  // of codes cut short, by rows - 1
};

}  // namespace

StageInfo polar_b_stage() {
  StageInfo stage;
  stage.name = "polar_b";
  stage.id = 26;
  stage.summary =
      "signs that form codewords of polar codes, at 1/32 to 1/2 bit per element: close to the "
      "least error that any code of that rate can have on normal values";
  stage.paper =
      "Korada, Urbanke: Polar Codes are Optimal for Lossy Source Coding, IEEE Trans. Inf. Theory "
      "2010; the scale of unbiased=true: Vargaftik et al.: EDEN, ICML 2022, section 3";
  stage.nonfinite =
      "a NaN or Inf makes its segment of up to 2^20 elements NaN; tensors of fewer than 64 "
      "elements "
      "keep it";
  stage.example = "polar_b(rate=0.25)";
  stage.params = {
      real_param("rate", "0.25", 0.03125, 0.5,
                 "bits per element on the wire, scales and frame included"),
      choice_param("n", "auto", "auto|1024|4096|16384",
                   "length of the codes, of which 64 make up a block; auto: by the tensor's size"),
      boolean_param("unbiased", "false",
                    "rotate whole blocks, and take the scale that makes the mean right"),
      polar_preset_param(),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<PolarB>(recipe);
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (!params.boolean("unbiased") || memory == nullptr) return nullptr;
    return "error feedback after the scale of unbiased=true diverges, since what is sent exceeds "
           "the gradient; leave out the memory, or unbiased=true";
  };
  stage.rotatable = true;
  return stage;
}

}  // namespace gradcomp
