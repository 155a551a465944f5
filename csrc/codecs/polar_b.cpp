// Polar codes as a vector quantizer: every element becomes its scale with a sign, and the signs of
// a block are a codeword of 64 interleaved polar codes, of which rate * n bits are sent.
//
// The tensor is cut into segments, each a block and a scale; docs/wire-format.md#polar_b is the
// norm. Encoding is successive-cancellation decoding of the elements as log-likelihood ratios.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/codecs.hpp"
#include "codecs/payload.hpp"
#include "coding/rotation.hpp"
#include "core/bytes.hpp"
#include "core/feedback.hpp"
#include "core/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "polar/bec_order.hpp"
#include "polar/block_coder.hpp"

namespace gradcomp {
namespace {

// Smaller tensors travel as float32.
constexpr std::size_t kMinNumel = 64;
// Frame header and CRC, and the stream of seeded codecs. They count towards the rate.
constexpr std::size_t kFrameBytes = 28;
constexpr std::size_t kStreamBytes = 8;
// A segment's blocks begin with one of at least so many rows, that the rotation's blocks fit in.
constexpr std::size_t kTileRows = kRotationBlock / kLanes;

constexpr unsigned kMinLog2 = 10;
constexpr unsigned kMaxLog2 = 14;

// From here on, no product underflows; up to there, no sum of the rotation overflows.
constexpr double kMinRms = 0x1p-100;
constexpr float kMaxRotatedScale = 0x1p100f;

constexpr std::size_t kOne = 1;

unsigned floor_log2(std::size_t n) {
  unsigned log2 = 0;
  while (n >> log2 > 1) ++log2;
  return log2;
}

// What one scale stands for: the rows [begin, end) of 64 elements. Their first `main` rows are one
// block; the others, of the last segment only, are cut into blocks of falling powers of two.
struct Segment {
  std::size_t begin;
  std::size_t end;
  std::size_t main;

  // Calls fn(first row, log2 of the rows).
  template <typename Fn>
  void for_blocks(const Fn& fn) const {
    if (main != 0) fn(begin, floor_log2(main));
    for (std::size_t row = begin + main; row < end;) {
      const unsigned log2 = floor_log2(end - row);
      fn(row, log2);
      row += std::size_t{1} << log2;
    }
  }
};

// How a tensor is cut, and how many words each part gets.
class Layout {
 public:
  // `overhead` is what a frame has besides the payload.
  Layout(std::size_t n, unsigned log2, double rate, std::size_t overhead)
      : n_(n), log2_(log2), rows_((n + kLanes - 1) / kLanes) {
    tile_rows_ = n / kRotationBlock * kTileRows;
    blocks_ = tile_rows_ >> log2;
    segments_ = blocks_;
    for (std::size_t rest = tile_rows_ - (blocks_ << log2); rest != 0; rest &= rest - 1) {
      ++segments_;
    }
    if (segments_ == 0) segments_ = 1;
    const double bytes = std::floor(rate * static_cast<double>(n) / 8) -
                         static_cast<double>(overhead + 4 * segments_);
    const double words = std::floor(bytes / 8);
    words_ = words < 1 ? 1 : static_cast<std::size_t>(words);
  }

  std::size_t numel() const { return n_; }
  std::size_t segments() const { return segments_; }
  std::size_t max_segment_rows() const {
    return segments_ == 1 ? rows_ : (std::size_t{1} << log2_) + kTileRows;
  }
  std::size_t payload_size() const { return 4 * segments_ + 8 * words_; }
  // Rounded up: the blocks at the end are the smallest, and make the least of a word.
  std::size_t first_word(std::size_t row) const { return (words_ * row + rows_ - 1) / rows_; }
  std::size_t block_words(std::size_t row, unsigned log2) const {
    return first_word(row + (std::size_t{1} << log2)) - first_word(row);
  }

  Segment segment(std::size_t index) const {
    std::size_t begin = std::min(index, blocks_) << log2_;
    std::size_t main = tile_rows_ == 0 ? 0 : std::size_t{1} << log2_;
    if (index >= blocks_ && tile_rows_ != 0) {
      main = std::size_t{1} << floor_log2(tile_rows_ - begin);
      for (; index > blocks_; --index) {
        begin += main;
        main = std::size_t{1} << floor_log2(tile_rows_ - begin);
      }
    }
    const bool last = begin + main == tile_rows_;
    return {begin, last ? rows_ : begin + main, main};
  }

 private:
  std::size_t n_;
  unsigned log2_;          // of the rows of a full block
  std::size_t rows_;       // of 64 elements; the last one may have fewer
  std::size_t tile_rows_;  // those that hold whole blocks of the rotation
  std::size_t blocks_;     // full ones
  std::size_t segments_;
  std::size_t words_;
};

// What one thread works with; in the call's scratch.
class Workspace {
 public:
  static std::size_t bytes(std::size_t rows) {
    return (2 * kLanes + sizeof(std::uint64_t) + kNodeSlots * 2 * sizeof(Node)) * rows +
           4 * kLanes * rows + 64;
  }

  Workspace(std::uint8_t* memory, std::size_t rows)
      : floats(reinterpret_cast<float*>(memory)),
        llr(reinterpret_cast<std::int8_t*>(floats + kLanes * rows)),
        work(llr + kLanes * rows),
        bits(reinterpret_cast<std::uint64_t*>(work + kLanes * rows)) {
    Node* nodes = reinterpret_cast<Node*>(bits + rows);
    for (NodeSlot& slot : slots_) {
      slot.nodes = nodes;
      nodes += 2 * rows;
    }
  }

  const Node* nodes(const std::vector<std::uint16_t>& ranks, unsigned log2, std::size_t words) {
    // Full blocks have one of two neighbouring numbers of words.
    NodeSlot& slot = slots_[words % kNodeSlots];
    if (slot.log2 != log2 || slot.words != words) {
      make_nodes(ranks.data(), log2, words, slot.nodes);
      slot.log2 = log2;
      slot.words = words;
    }
    return slot.nodes;
  }

  float* floats;  // of the segment, rotated
  std::int8_t* llr;
  std::int8_t* work;
  std::uint64_t* bits;

 private:
  static constexpr std::size_t kNodeSlots = 2;
  struct NodeSlot {
    unsigned log2 = 0;
    std::size_t words = 0;  // never asked for
    Node* nodes = nullptr;
  };
  NodeSlot slots_[kNodeSlots];
};

// The Walsh-Hadamard transform across `count` tiles, a power of two, without scaling.
void mix_tiles(float* x, std::size_t count) {
  constexpr std::size_t kColumns = 64;  // a few cache lines of every tile at a time
  for (std::size_t column = 0; column < kRotationBlock; column += kColumns) {
    for (std::size_t stride = 1; stride < count; stride *= 2) {
      for (std::size_t tile = 0; tile < count; ++tile) {
        if ((tile & stride) != 0) continue;
        float* const a = x + tile * kRotationBlock + column;
        float* const b = a + stride * kRotationBlock;
        for (std::size_t j = 0; j < kColumns; ++j) {
          const float sum = a[j] + b[j];
          b[j] = a[j] - b[j];
          a[j] = sum;
        }
      }
    }
  }
}

class PolarB final : public Codec {
 public:
  explicit PolarB(const Recipe& recipe)
      : rate_(recipe.params.real("rate")),
        unbiased_(recipe.params.boolean("unbiased")),
        rotated_(recipe.transform != nullptr || unbiased_) {
    const std::string& n = recipe.params.choice("n");
    if (n != "auto") log2_ = floor_log2(std::stoul(n));
    const unsigned top = log2_ != 0 ? log2_ : kMaxLog2;
    const auto erasure = static_cast<std::uint32_t>(std::llround((1 - rate_) * 0x1p31));
    for (unsigned log2 = 0; log2 <= top; ++log2) ranks_.push_back(bec_ranks(log2, erasure));
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
    return n < kMinNumel ? 4 * n : layout(n).payload_size();
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    float* const residual = residual_of(call);
    if (n < kMinNumel) {
      correct(call, 0, n);
      if (n != 0) std::memcpy(out.data(), x.data(), 4 * n);
      if (residual != nullptr) kernels().f32_add(out.data(), -1.0f, residual, n);
      *written = 4 * n;
      return {};
    }
    const Layout layout = this->layout(n);
    const Rotation rotation(n, call.stream);
    std::uint8_t* const words = out.data() + 4 * layout.segments();
    GRADCOMP_TRY(for_segments(layout, call, [&](std::size_t index, Workspace& space) {
      const Segment segment = layout.segment(index);
      const std::size_t begin = kLanes * segment.begin;
      const std::size_t count = std::min(kLanes * segment.end, n) - begin;
      correct(call, begin, begin + count);
      const float scale = encode_segment(layout, segment, rotation, x.data(), space, words);
      store(out.data() + 4 * index, scale);
      if (residual == nullptr) return;
      expand(
          layout, segment, rotation, scale, space,
          [](std::size_t, float* buffer) { return buffer; },
          [&](std::size_t first, const float* sent, std::size_t size) {
            kernels().f32_add(reinterpret_cast<const std::uint8_t*>(sent), -1.0f, residual + first,
                              size);
          });
    }));
    *written = layout.payload_size();
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    if (y.size() < kMinNumel) {
      GRADCOMP_TRY(check_payload_size(in, 4 * y.size(), y.size()));
      if (!y.empty()) std::memcpy(y.data(), in.data(), 4 * y.size());
      return {};
    }
    return decode_segments(
        in, call, y.size(), [&](std::size_t begin, float*) { return y.data() + begin; },
        [](std::size_t, const float*, std::size_t) {});
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    if (acc.size() < kMinNumel) {
      GRADCOMP_TRY(check_payload_size(in, 4 * acc.size(), acc.size()));
      kernels().f32_add(in.data(), weight, acc.data(), acc.size());
      return {};
    }
    return decode_segments(
        in, call, acc.size(), [](std::size_t, float* buffer) { return buffer; },
        [&](std::size_t begin, const float* v, std::size_t count) {
          kernels().f32_add(reinterpret_cast<const std::uint8_t*>(v), weight, acc.data() + begin,
                            count);
        });
  }

 private:
  Layout layout(std::size_t n) const {
    unsigned log2 = log2_;
    // Longer codes are better, as long as a few blocks of them make up most of the tensor.
    for (unsigned candidate = kMinLog2; log2_ == 0 && candidate <= kMaxLog2; candidate += 2) {
      if (candidate == kMinLog2 || n >> candidate >= kLanes) log2 = candidate;
    }
    return {n, log2, rate_, kFrameBytes + (rotated_ ? kStreamBytes : 0)};
  }

  // Calls fn(index, workspace) for all segments, in parallel.
  template <typename Fn>
  Status for_segments(const Layout& layout, const Call& call, const Fn& fn) const {
    const std::size_t units = layout.segments() * kChunk;
    const std::size_t ranges = range_count(units);
    const std::size_t rows = layout.max_segment_rows();
    const std::size_t each = (Workspace::bytes(rows) + 63) / 64 * 64;
    const Span<std::uint8_t> memory = call.scratch->get<std::uint8_t>(0, ranges * each);
    if (memory.empty()) return capacity_error("out of memory while coding blocks");
    for_ranges(units, ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
      Workspace space(memory.data() + range * each, rows);
      for (std::size_t index = begin / kChunk; index < end / kChunk; ++index) fn(index, space);
    });
    return {};
  }

  // Fills space.llr: `inverse` times the elements, rotated if they are to be.
  LlrSums make_llr(const Layout& layout, const Segment& segment, const Rotation& rotation,
                   const float* x, float inverse, Workspace& space) const {
    const std::size_t begin = kLanes * segment.begin;
    const std::size_t count = std::min(kLanes * segment.end, layout.numel()) - begin;
    LlrSums sums{true, 0};
    const auto quantize = [&](const float* v, std::size_t first, std::size_t size) {
      const LlrSums part = kernels().polar->quantize(v, inverse, space.llr + first, size);
      sums.finite = sums.finite && part.finite;
      sums.squares += part.squares;
    };
    std::memset(space.llr + count, 0, kLanes * (segment.end - segment.begin) - count);
    if (!rotated_) {
      quantize(x + begin, 0, count);
      return sums;
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile) - begin;
      float* const v = unbiased_ ? space.floats + first : space.floats;
      rotation.forward(tile, x + begin + first, v);
      if (!unbiased_) quantize(v, first, rotation.tile_size(tile));
    });
    if (unbiased_) {
      mix_tiles(space.floats, segment.main / kTileRows);
      quantize(space.floats, 0, count);
    }
    return sums;
  }

  // The tiles of the rotation that lie in the segment.
  template <typename Fn>
  static void for_tiles(const Segment& segment, const Fn& fn) {
    const std::size_t first = segment.begin / kTileRows;
    const std::size_t count = std::max(segment.main / kTileRows, std::size_t{1});
    for (std::size_t tile = first; tile < first + count; ++tile) fn(tile);
  }

  // Returns the scale; leaves the signs in space.bits.
  float encode_segment(const Layout& layout, const Segment& segment, const Rotation& rotation,
                       const float* x, Workspace& space, std::uint8_t* words) const {
    const std::size_t begin = kLanes * segment.begin;
    const std::size_t count = std::min(kLanes * segment.end, layout.numel()) - begin;
    // Mixing tiles makes all elements larger by the root of their number.
    const double mixed =
        unbiased_ ? std::sqrt(static_cast<double>(std::max(segment.main / kTileRows, kOne))) : 1.0;
    const double max_rms = rotated_ ? static_cast<double>(kMaxRotatedScale)
                                    : static_cast<double>(std::numeric_limits<float>::max());
    const auto usable = [&](double squares) {
      const double rms = std::sqrt(squares / static_cast<double>(count));
      return rms >= kMinRms && rms <= max_rms;  // false for NaN
    };
    float inverse = 0;
    const auto try_squares = [&](double squares) {
      const double rms = std::sqrt(squares / static_cast<double>(count));
      inverse = static_cast<float>(llr_per_rms() / (rms * mixed));
      return make_llr(layout, segment, rotation, x, inverse, space);
    };
    // Ratios need not be exact: a sample saves a pass over memory, if it turns out to be right.
    double squares = unbiased_ ? 0.0 : sample_squares(x + begin, count);
    LlrSums sums{false, 0};
    if (usable(squares)) sums = try_squares(squares);
    const double expected = llr_per_rms() * llr_per_rms() * static_cast<double>(count);
    const double found = static_cast<double>(sums.squares) / expected;
    if (!sums.finite || found < 0.5 || found > 2.0) {
      squares = kernels().sum_squares(x + begin, count);
      sums = usable(squares) ? try_squares(squares) : LlrSums{false, 0};
    }
    if (!sums.finite) {
      const std::size_t first = layout.first_word(segment.begin);
      std::memset(words + 8 * first, 0, 8 * (layout.first_word(segment.end) - first));
      std::fill(space.bits, space.bits + (segment.end - segment.begin), std::uint64_t{0});
      const double rms = std::sqrt(squares / static_cast<double>(count));
      return rms < kMinRms ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    std::int64_t agreement = 0;
    std::size_t coded = 0;
    segment.for_blocks([&](std::size_t row, unsigned log2) {
      const std::size_t size = layout.block_words(row, log2);
      if (size == 0) return;
      const std::size_t rows = std::size_t{1} << log2;
      const std::size_t at = row - segment.begin;
      const std::int8_t* const llr = space.llr + kLanes * at;
      polar_encode(space.nodes(ranks_[log2], log2, size), log2, llr, space.work, space.bits + at,
                   words + 8 * layout.first_word(row));
      agreement += kernels().polar->agreement(llr, space.bits + at, rows);
      coded += std::min(kLanes * (row + rows), layout.numel()) - kLanes * row;
    });
    if (agreement <= 0) return 0.0f;
    const double product = static_cast<double>(agreement) / static_cast<double>(inverse);
    const double scale =
        unbiased_ ? squares / product : product / static_cast<double>(coded);
    return scale <= max_rms ? static_cast<float>(scale) : std::numeric_limits<float>::quiet_NaN();
  }

  // About the sum of the squares: in large tensors from an eighth of the elements, 512 of every
  // 4096 at changing places.
  static double sample_squares(const float* x, std::size_t count) {
    constexpr std::size_t kRun = 512;
    constexpr std::size_t kShare = 8;
    if (count < kShare * kRotationBlock) return kernels().sum_squares(x, count);
    const std::size_t runs = count / (kShare * kRun);
    double squares = 0;
    for (std::size_t i = 0; i < runs; ++i) {
      squares += kernels().sum_squares(x + kRun * (kShare * i + 5 * i % kShare), kRun);
    }
    return squares * static_cast<double>(count) / static_cast<double>(runs * kRun);
  }

  // How large a log-likelihood ratio the root mean square is; measured, see docs/codecs/polar_b.md.
  double llr_per_rms() const { return rate_ <= 0.25 ? 12.0 : 12.0 + 16.0 * (rate_ - 0.25); }

  // The elements [begin, end) of the segment from space.bits, still rotated.
  static void signs(const Layout& layout, const Segment& segment, float scale,
                    const Workspace& space, std::size_t begin, std::size_t end, float* y) {
    const float unknown = std::isfinite(scale) ? 0.0f : scale;
    segment.for_blocks([&](std::size_t row, unsigned log2) {
      const std::size_t first = std::max(begin, kLanes * row);
      const std::size_t last = std::min(end, kLanes * (row + (std::size_t{1} << log2)));
      if (first >= last) return;
      const auto* const bits =
          reinterpret_cast<const std::uint8_t*>(space.bits) + (first / 8 - 8 * segment.begin);
      const bool sent = layout.block_words(row, log2) != 0;
      kernels().select_bits(bits, sent ? scale : unknown, sent ? -scale : unknown,
                            y + (first - begin), last - first);
    });
  }

  // Calls sink(begin, values, count) for runs of decoded elements of the segment. `place(begin,
  // buffer)` says where they are decoded to.
  template <typename Place, typename Sink>
  void expand(const Layout& layout, const Segment& segment, const Rotation& rotation, float scale,
              Workspace& space, const Place& place, const Sink& sink) const {
    const std::size_t begin = kLanes * segment.begin;
    const std::size_t end = std::min(kLanes * segment.end, layout.numel());
    if (!rotated_) {
      for (std::size_t first = begin; first < end; first += kRotationBlock) {
        const std::size_t last = std::min(first + kRotationBlock, end);
        float* const v = place(first, space.floats);
        signs(layout, segment, scale, space, first, last, v);
        sink(first, v, last - first);
      }
      return;
    }
    const bool usable = std::fabs(scale) <= kMaxRotatedScale;
    if (unbiased_ && usable) {
      float* const v = place(begin, space.floats);
      signs(layout, segment, scale, space, begin, end, v);
      mix_tiles(v, segment.main / kTileRows);
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile);
      const std::size_t size = rotation.tile_size(tile);
      float* const v = place(first, unbiased_ ? space.floats + (first - begin) : space.floats);
      if (!usable) {
        std::fill(v, v + size, std::numeric_limits<float>::quiet_NaN());
      } else {
        if (!unbiased_) signs(layout, segment, scale, space, first, first + size, v);
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
    const std::uint8_t* const words = in.data() + 4 * layout.segments();
    return for_segments(layout, call, [&](std::size_t index, Workspace& space) {
      const Segment segment = layout.segment(index);
      segment.for_blocks([&](std::size_t row, unsigned log2) {
        const std::size_t size = layout.block_words(row, log2);
        if (size == 0) return;
        polar_decode(space.nodes(ranks_[log2], log2, size), log2,
                     words + 8 * layout.first_word(row), space.bits + (row - segment.begin));
      });
      expand(layout, segment, rotation, load<float>(in.data() + 4 * index), space, place, sink);
    });
  }

  double rate_;
  bool unbiased_;
  bool rotated_;
  unsigned log2_ = 0;  // of the rows of a block; 0: by the tensor's size
  std::vector<std::vector<std::uint16_t>> ranks_;  // by log2
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
      "a NaN or Inf makes its segment of up to 2^20 elements NaN; tensors of fewer than 64 elements "
      "keep it";
  stage.example = "polar_b(rate=0.25)";
  stage.params = {
      real_param("rate", "0.25", 0.03125, 0.5,
                 "bits per element on the wire, scales and frame included"),
      choice_param("n", "auto", "auto|1024|4096|16384",
                   "length of the codes, of which 64 make up a block; auto: by the tensor's size"),
      boolean_param("unbiased", "false",
                    "rotate whole blocks, and take the scale that makes the mean right"),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<PolarB>(recipe);
  };
  stage.rotatable = true;
  return stage;
}

}  // namespace gradcomp
