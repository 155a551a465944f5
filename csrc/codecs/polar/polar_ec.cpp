// Entropy-coded polar quantization: every element becomes a point of a half-integer lattice. A
// polar code says which half of the points is meant; which one of that half, its index, is coded
// with rANS.
//
// docs/wire-format.md#polar_ec is the norm.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "codecs/polar/blocks.hpp"
#include "coding/digits.hpp"
#include "coding/rotation.hpp"
#include "kernels/kernels.hpp"
#include "polar/block_coder.hpp"
#include "polar/lattice.hpp"
#include "polar/lattice_code.hpp"
#include "polar/lattice_step.hpp"
#include "polar/list_coder.hpp"

namespace gradcomp {
namespace {

// Elements whose indices are coded together, if a block does not have more.
constexpr std::size_t kMinChunk = std::size_t{1} << 18;

// Elements that are much smaller than the step would hardly make a difference for the code's
// decisions: segments without an element of a whole step get a step of their own, in root mean
// squares.
constexpr double kQuietStep = 5;

// Of the tiles at most about so many are looked at to choose the step.
constexpr std::size_t kSampledTiles = 64;

// The least that indices take, in bits per element; how far off the size may be, of that asked for;
// and how often the step is chosen anew.
constexpr double kMinIndexBits = 0.001;
constexpr double kTolerance = 0.015;
constexpr int kMaxPasses = 6;

constexpr std::size_t kSymbolSlot = 1;
constexpr std::size_t kOutlierSlot = 2;

constexpr int kOutlierPlace = static_cast<int>(kLatticeTop);

// An element beyond the points: it travels as it is.
struct Outlier {
  std::uint32_t at;
  float value;
};
static_assert(sizeof(Outlier) == kOutlierBytes, "as on the wire");

// There is room for one in so many elements.
constexpr std::size_t kOutlierShare = 64;

std::size_t words_of(const Block& block) {
  return lattice_words(block.end) - lattice_words(block.begin);
}

// How a tensor is cut, and where its parts are in a payload.
class Layout : public BlockCut {
 public:
  Layout(std::size_t n, unsigned log2)
      : BlockCut(n, log2),
        chunk_(std::max(kMinChunk, kLanes << log2)),
        segments_each_((chunk_ / kLanes) >> log2) {}

  std::size_t words_at() const { return 4 * blocks(); }
  std::size_t digits_at() const { return words_at() + 8 * lattice_words(rows()); }
  std::size_t chunk() const { return chunk_; }
  std::size_t chunks() const { return (numel() + chunk_ - 1) / chunk_; }
  std::size_t chunk_size(std::size_t chunk) const {
    return std::min(chunk_, numel() - chunk_ * chunk);
  }
  std::size_t max_outliers() const { return numel() / kOutlierShare; }
  std::size_t max_size() const {
    return digits_at() + kDigitsHeader * chunks() + numel() + kOutlierBytes * max_outliers();
  }

  // A unit is what one thread encodes: the segments of a chunk. The last one takes what is left of
  // the tensor.
  std::size_t units() const {
    const std::size_t tiled = numel() / kRotationBlock * kRotationBlock;
    return std::max<std::size_t>(1, (tiled + chunk_ - 1) / chunk_);
  }
  std::size_t first_segment(std::size_t unit) const {
    return unit == units() ? segments() : unit * segments_each_;
  }
  std::size_t first_chunk(std::size_t unit) const { return unit == units() ? chunks() : unit; }
  std::size_t unit_begin(std::size_t unit) const {
    return std::min(numel(), chunk_ * first_chunk(unit));
  }
  // A unit has up to so many elements.
  std::size_t max_unit() const { return std::min(numel(), chunk_ + kRotationBlock); }

 private:
  std::size_t chunk_;  // elements
  std::size_t segments_each_;
};

// Those that the encoder has found in a unit, in order.
class Outliers {
 public:
  Outliers(Outlier* first, std::size_t room) : first_(first), room_(room) {}

  Outlier* begin() const { return first_; }
  Outlier* end() const { return first_ + count_; }
  std::size_t count() const { return count_; }
  // Whether there was room for all.
  bool complete() const { return complete_; }

  void add(std::size_t at, float value) {
    complete_ = complete_ && count_ < room_;
    if (complete_) first_[count_++] = {static_cast<std::uint32_t>(at), value};
  }
  // Forgets all but the first ones.
  void keep(std::size_t count) {
    count_ = count;
    complete_ = true;
  }

 private:
  Outlier* first_;
  std::size_t room_;
  std::size_t count_ = 0;
  bool complete_ = true;
};

// Gives out parts of a thread's memory, or counts how much they take.
class Carver {
 public:
  explicit Carver(std::uint8_t* memory) : memory_(memory) {}

  template <typename T>
  T* take(std::size_t count) {
    std::uint8_t* const here = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(here);
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

// What decoding works with.
struct Reader {
  Reader(Carver& carver, const Layout& layout, bool whole_blocks, bool)
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

// What encoding works with.
struct Writer {
  Writer(Carver& carver, const Layout& layout, bool whole_blocks, bool best)
      : floats(carver.take<float>(
            whole_blocks ? kLanes * layout.max_rows()
                         : std::min(kLanes * layout.max_rows(), Rotation::kMaxTile + 1))),
        places(carver.take<std::int16_t>(kLanes * layout.max_rows())),
        llr(carver.take<std::int8_t>(kLanes * layout.max_rows())),
        work(carver.take<std::int8_t>(kLanes * layout.max_rows())),
        bits(carver.take<std::uint64_t>(layout.max_rows())),
        mask(carver.take<std::uint64_t>(layout.max_rows())),
        indices(carver.take<std::uint8_t>(layout.max_unit())),
        symbols(carver.take<std::uint8_t>(layout.chunk())),
        list_llr(best ? carver.take<std::int8_t>(kLanes * layout.max_rows()) : nullptr),
        list_bits(best ? carver.take<std::uint64_t>(layout.max_rows()) : nullptr) {}

  float* floats;
  std::int16_t* places;
  std::int8_t* llr;
  std::int8_t* work;
  std::uint64_t* bits;
  std::uint64_t* mask;
  std::uint8_t* indices;  // of the unit
  std::uint8_t* symbols;
  std::int8_t* list_llr;  // with `best`: what polar_list_encode() works with
  std::uint64_t* list_bits;
};

class PolarEc final : public PolarCodec<PolarEc> {
 public:
  explicit PolarEc(const Recipe& recipe)
      : rate_(recipe.params.real("rate")),
        n_(recipe.params.choice("n")),
        unbiased_(recipe.params.boolean("unbiased")),
        rotated_(recipe.transform != nullptr || unbiased_),
        best_(recipe.params.has("preset")),
        design_(rate_),
        normal_(unbiased_ ? Magnitudes::normal() : Magnitudes()) {
    for (unsigned log2 = 0; log2 <= kMaxPolarLog2; ++log2) {
      nodes_.push_back(lattice_tree(log2, std::size_t{1} << log2));
    }
    for (std::size_t rows = 1; rows <= kTileRows; ++rows) {
      short_nodes_.push_back(lattice_tree(rows == 1 ? 0 : floor_log2(rows - 1) + 1, rows));
    }
  }

  Caps caps() const noexcept override {
    Caps caps;
    caps.seeded = true;
    caps.private_noise = true;
    caps.finite = !rotated_;  // magnitudes above 2^84 may become NaN
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
    const Layout layout = this->layout(n);
    const Rotation rotation(n, call.stream);
    const Magnitudes sampled = unbiased_ ? Magnitudes() : sample(rotation, x.data(), n);
    const Magnitudes& magnitudes = unbiased_ ? normal_ : sampled;
    const auto elements = static_cast<double>(n);
    const double asked = rate_ * elements / 8 - static_cast<double>(kFrameBytes + kFrameStream);
    // What indices take besides their entropy is about the states of rANS and a short table.
    const double fixed = static_cast<double>(layout.digits_at() + 112 * layout.chunks());
    double bits = 8 * (asked - fixed) / elements;
    double step = design_.find_step(magnitudes, std::max(bits, kMinIndexBits));
    for (int pass = 1;; ++pass) {
      GRADCOMP_TRY(encode_at(layout, rotation, x.data(), step, call, out.data(), written));
      const double excess = static_cast<double>(*written) - asked;
      if (std::fabs(excess) <= kTolerance * asked || pass == kMaxPasses) return {};
      bits = std::max(bits, kMinIndexBits) - 8 * excess / elements;
      const double last = step;
      step = design_.find_step(magnitudes, std::max(bits, kMinIndexBits));
      if (step == last) return {};
    }
  }

 private:
  friend PolarCodec<PolarEc>;

  const SubtreeKind* nodes(const Block& block) const {
    const std::size_t rows = block.end - block.begin;
    const bool whole = rows == std::size_t{1} << block.log2;
    return (whole ? nodes_[block.log2] : short_nodes_[rows - 1]).data();
  }

  Layout layout(std::size_t n) const { return {n, polar_block_log2(n_, n)}; }

  Magnitudes sample(const Rotation& rotation, const float* x, std::size_t n) const {
    Magnitudes result;
    if (!rotated_ && rotation.tiles() * kRotationBlock > n) {
      result.add(x, n);
      return result;
    }
    alignas(64) float buffer[Rotation::kMaxTile];
    // Odd, so that no period of the tensor fits it.
    const std::size_t stride = rotation.tiles() / kSampledTiles | 1;
    for (std::size_t tile = 0; tile < rotation.tiles(); tile += stride) {
      const float* v = x + rotation.tile_begin(tile);
      if (rotated_) {
        rotation.forward(tile, v, buffer);
        v = buffer;
      }
      result.add(v, rotation.tile_size(tile));
    }
    return result;
  }

  // Calls fn(index, space) for index < count, in parallel, with a Space for each thread.
  template <typename Space, typename Fn>
  Status for_each(std::size_t count, const Layout& layout, const Call& call, const Fn& fn) const {
    const std::size_t parts = part_count(count);
    Carver sizes(nullptr);
    const Space unused(sizes, layout, unbiased_, best_);
    const Span<std::uint8_t> memory = call.scratch->get<std::uint8_t>(0, parts * sizes.used());
    if (memory.empty()) return capacity_error("out of memory while coding blocks");
    for_parts(count, parts, [&](std::size_t part, std::size_t begin, std::size_t end) {
      Carver carver(memory.data() + part * sizes.used());
      Space space(carver, layout, unbiased_, best_);
      for (std::size_t index = begin; index < end; ++index) fn(index, space);
    });
    return {};
  }

  // Encodes with one step, for unbiased=true in root mean squares of the segment.
  Status encode_at(const Layout& layout, const Rotation& rotation, const float* x, double step,
                   const Call& call, std::uint8_t* payload, std::size_t* written) const {
    // Chunks are first written where the longest ones would be.
    const auto place = [&](std::size_t chunk) {
      return payload + layout.digits_at() + (kDigitsHeader + layout.chunk()) * chunk;
    };
    const Span<Outlier> memory =
        call.scratch->get<Outlier>(kOutlierSlot, layout.max_outliers() + 1);
    if (memory.empty()) return capacity_error("out of memory while coding outliers");
    // What a unit has room for begins where that of those before ends.
    const auto outliers_at = [&](std::size_t unit) {
      return layout.unit_begin(unit) / kOutlierShare;
    };
    std::vector<std::size_t> counts(layout.units());
    GRADCOMP_TRY(
        for_each<Writer>(layout.units(), layout, call, [&](std::size_t unit, Writer& space) {
          // Where all sums are to be those of the elements, none may be left out.
          const std::size_t room = unbiased_ ? 0 : outliers_at(unit + 1) - outliers_at(unit);
          Outliers outliers(memory.data() + outliers_at(unit), room);
          const std::size_t begin = layout.unit_begin(unit);
          for (std::size_t i = layout.first_segment(unit); i < layout.first_segment(unit + 1);
               ++i) {
            encode_segment(layout, layout.segment(i), rotation, x, step, begin, space, &outliers,
                           payload);
          }
          counts[unit] = outliers.count();
          for (std::size_t chunk = layout.first_chunk(unit); chunk < layout.first_chunk(unit + 1);
               ++chunk) {
            digits_encode(
                {space.indices + (layout.chunk() * chunk - begin), layout.chunk_size(chunk)},
                space.symbols, place(chunk));
          }
        }));
    std::uint8_t* end = payload + layout.digits_at();
    for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      const std::uint8_t* const from = place(chunk);
      const std::size_t size = kDigitsHeader + (load<std::uint32_t>(from) & 0xFFFFFFu);
      std::memmove(end, from, size);
      end += size;
    }
    for (std::size_t unit = 0; unit < layout.units(); ++unit) {
      std::memcpy(end, memory.data() + outliers_at(unit), kOutlierBytes * counts[unit]);
      end += kOutlierBytes * counts[unit];
    }
    *written = static_cast<std::size_t>(end - payload);
    return {};
  }

  // How much larger, squared, the second rotation makes elements.
  double spread_gain(const Layout& layout, const Block& block) const {
    const std::size_t tiles = layout.elements(block) / kRotationBlock;
    return unbiased_ && tiles > 1 ? static_cast<double>(tiles) : 1.0;
  }

  double block_step(const Layout& layout, const Block& block, double step) const {
    return step * std::sqrt(spread_gain(layout, block));
  }

  // Fills space.floats with the whole segment after both rotations.
  void spread_segment(const Layout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, Writer& space) const {
    const std::size_t begin = layout.first(segment);
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile);
      rotation.forward(tile, x + first, space.floats + (first - begin));
    });
    spread(space.floats, begin / kRotationBlock, layout.elements(segment) / kRotationBlock,
           rotation.stream());
  }

  // Fills space.places and space.llr, and adds to the outliers; returns the bits of the largest
  // magnitude in steps of the first block.
  std::uint32_t find_places(const Layout& layout, const Segment& segment, const Rotation& rotation,
                            const float* x, double step, Writer& space, Outliers* outliers) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    std::uint32_t largest = 0;
    const auto find = [&](const float* v, std::size_t first, std::size_t size, double at) {
      const auto scale = static_cast<float>(16 / at);
      const std::uint32_t found =
          kernels().polar->lattice_places(v, space.mask + first / kLanes, scale, design_.rule(),
                                          space.places + first, space.llr + first, size);
      // The product is rounded as the kernels round it.
      if (bits_float(found) * scale >= kLatticeTop) {
        for (std::size_t i = 0; i < size; ++i) {
          const int place = space.places[first + i];
          if (place == kOutlierPlace || place == ~kOutlierPlace)
            outliers->add(begin + first + i, v[i]);
        }
      }
      largest = std::max(largest, found);
    };
    if (unbiased_) {
      for_blocks(layout, segment, [&](std::size_t, const Block& block) {
        const std::size_t first = kLanes * block.begin - begin;
        find(space.floats + first, first, layout.elements(block), block_step(layout, block, step));
      });
    } else if (rotated_) {
      for_tiles(segment, [&](std::size_t tile) {
        const std::size_t first = rotation.tile_begin(tile) - begin;
        rotation.forward(tile, x + begin + first, space.floats);
        find(space.floats, first, rotation.tile_size(tile), step);
      });
    } else {
      find(x + begin, 0, count, step);
    }
    return largest;
  }

  // Codes one block whose places and LLRs are there.
  LatticeSums encode_block(const Layout& layout, const Segment& segment, const Block& block,
                           std::size_t unit_begin, const Outlier* outliers,
                           const Outlier* outliers_end, Writer& space,
                           std::uint8_t* payload) const {
    const std::size_t at = block.begin - segment.begin;
    const std::size_t rows = block.end - block.begin;
    const std::size_t elements = layout.elements(block);
    std::int8_t* const llr = space.llr + kLanes * at;
    // What the code has beyond the block may be anything.
    std::memset(llr + elements, 0, (kLanes << block.log2) - elements);
    std::uint8_t* const words = payload + layout.words_at() + 8 * lattice_words(block.begin);
    if (best_) {
      polar_list_encode(nodes(block), block.log2, llr,
                        {space.list_llr, space.work, space.list_bits}, space.bits + at, words);
    } else {
      polar_encode(nodes(block), block.log2, llr, space.work, space.bits + at, words);
    }
    kernels().polar->xor_words(space.bits + at, space.mask + at, rows);
    LatticeSums sums = kernels().polar->lattice_indices(
        space.places + kLanes * at, space.bits + at, design_.rule(),
        space.indices + (kLanes * block.begin - unit_begin), elements);
    // Outliers do not count, and have the index that is cheapest.
    for (; outliers != outliers_end; ++outliers) {
      if (outliers->at < kLanes * block.begin || outliers->at >= kLanes * block.end) continue;
      const std::size_t i = outliers->at - layout.first(segment);
      const std::uint64_t bit = space.bits[i / kLanes] >> (i % kLanes) & 1;
      std::uint8_t* const index = space.indices + (outliers->at - unit_begin);
      const LatticeSums one =
          kScalarPolarKernels.lattice_indices(space.places + i, &bit, design_.rule(), index, 1);
      *index = 0;
      sums.product -= one.product;
      sums.energy -= one.energy;
    }
    return sums;
  }

  // Writes the segment's scales and words to the payload, leaves the indices in the unit's, and
  // adds to the outliers.
  void encode_segment(const Layout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, double step, std::size_t unit_begin, Writer& space,
                      Outliers* outliers, std::uint8_t* payload) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t count = layout.elements(segment);
    draw_mask(segment, rotation.stream(), space.mask);
    const auto rms_of_all = [&] {
      return std::sqrt(kernels().sum_squares(x + begin, count) / static_cast<double>(count));
    };
    if (unbiased_) {
      spread_segment(layout, segment, rotation, x, space);
      step *= rms_of_all();
    }
    bool own_step = unbiased_;
    const std::size_t outliers_before = outliers->count();
    while (true) {
      outliers->keep(outliers_before);
      if (!(step >= kMinPolarRms)) {
        if (own_step) break;
        own_step = true;
        step = kQuietStep * rms_of_all();
        continue;
      }
      if (!std::isfinite(step)) break;
      step = std::min(step, static_cast<double>(std::numeric_limits<float>::max()));
      const float largest =
          bits_float(find_places(layout, segment, rotation, x, step, space, outliers));
      if (!std::isfinite(largest)) {
        outliers->keep(outliers_before);
        step = std::numeric_limits<double>::quiet_NaN();
        break;
      }
      if (!outliers->complete()) {
        own_step = true;
        step = static_cast<double>(largest) / 254;  // the largest place is 254.9 steps away
        continue;
      }
      if (!own_step && static_cast<double>(largest) < step) {
        own_step = true;
        step = kQuietStep * rms_of_all();
        continue;
      }
      for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
        const LatticeSums sums =
            encode_block(layout, segment, block, unit_begin, outliers->begin() + outliers_before,
                         outliers->end(), space, payload);
        store(payload + 4 * index, scale_of(layout, segment, block, step, largest, sums, space));
      });
      return;
    }
    // All is zero, or not finite.
    const float scale = step < kMinPolarRms ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
      store(payload + 4 * index, scale);
      std::memset(payload + layout.words_at() + 8 * lattice_words(block.begin), 0,
                  8 * words_of(block));
      std::memset(space.indices + (kLanes * block.begin - unit_begin), 0, layout.elements(block));
    });
  }

  float scale_of(const Layout& layout, const Segment& segment, const Block& block, double step,
                 float largest, const LatticeSums& sums, const Writer& space) const {
    if (sums.product <= 0) return 0.0f;
    const double at = block_step(layout, block, step);
    const auto product = static_cast<double>(sums.product);
    const auto energy = static_cast<double>(sums.energy);
    if (!rotated_) {
      // The largest point must not overflow.
      const double limit = static_cast<double>(std::numeric_limits<float>::max()) /
                           (std::min(static_cast<double>(largest) / at, 255.0) + 2);
      return static_cast<float>(std::min(at / 16 * product / energy, limit));
    }
    double scale = at / 16 * product / energy;
    if (unbiased_) {
      const float* const v = space.floats + kLanes * (block.begin - segment.begin);
      const double squares = kernels().sum_squares(v, layout.elements(block));
      scale = squares / (at / 64 * product);
    }
    scale /= spread_gain(layout, block);
    return scale <= static_cast<double>(kMaxRotatedScale) ? static_cast<float>(scale)
                                                          : std::numeric_limits<float>::quiet_NaN();
  }

  // The elements [begin, end) of the segment, still rotated. `symbols` are the packed indices of
  // the whole tensor.
  void points(const Layout& layout, const Segment& segment, const std::uint8_t* scales,
              const std::vector<DigitsChunk>& chunks, const std::uint8_t* symbols,
              Span<const Outlier> outliers, const Reader& space, std::size_t begin, std::size_t end,
              float* y) const {
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

  // Finds the chunks of indices and decodes them to `symbols`, chunk c from c * layout.chunk() on.
  // `rest` becomes what follows them.
  static Status read_chunks(const Layout& layout, Span<const std::uint8_t> in,
                            std::vector<DigitsChunk>* chunks, std::uint8_t* symbols,
                            Span<const std::uint8_t>* rest) {
    const std::uint8_t* at = in.data() + layout.digits_at();
    chunks->resize(layout.chunks());
    for (std::size_t c = 0; c < layout.chunks(); ++c) {
      const Span<const std::uint8_t> left{at, static_cast<std::size_t>(in.end() - at)};
      if (!read_digits_header(left, layout.chunk_size(c), &(*chunks)[c])) {
        return wire_error("chunk " + std::to_string(c) + " of the indices has no valid header");
      }
      at = (*chunks)[c].body.end();
    }
    *rest = {at, static_cast<std::size_t>(in.end() - at)};
    std::vector<std::uint8_t> failed(layout.chunks(), 0);
    const std::size_t parts = part_count(layout.chunks());
    for_parts(layout.chunks(), parts, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t c = begin; c < end; ++c) {
        const DigitsChunk& chunk = (*chunks)[c];
        failed[c] = !digits_decode(chunk, {symbols + layout.chunk() * c,
                                           digit_symbols(layout.chunk_size(c), chunk.width)});
      }
    });
    const auto first = std::find(failed.begin(), failed.end(), 1);
    if (first == failed.end()) return {};
    return wire_error("chunk " + std::to_string(first - failed.begin()) +
                      " of the indices is damaged");
  }

  static Status read_outliers(Span<const std::uint8_t> in, std::size_t n, const Call& call,
                              Span<Outlier>* outliers) {
    if (in.size() % kOutlierBytes != 0) {
      return wire_error(std::to_string(in.size()) +
                        " bytes follow the last chunk of indices; "
                        "outliers take " +
                        std::to_string(kOutlierBytes) + " each");
    }
    const std::size_t count = in.size() / kOutlierBytes;
    const Span<Outlier> all = call.scratch->get<Outlier>(kOutlierSlot, count + 1);
    if (all.empty()) return capacity_error("out of memory while decoding outliers");
    std::memcpy(all.data(), in.data(), in.size());
    *outliers = {all.data(), count};
    for (std::size_t i = 0; i < count; ++i) {
      if (all[i].at >= n || (i != 0 && all[i].at <= all[i - 1].at)) {
        return wire_error("outlier " + std::to_string(i) + " is element " +
                          std::to_string(all[i].at) + " of " + std::to_string(n) +
                          "; they must ascend");
      }
    }
    return {};
  }

  template <typename Place, typename Sink>
  Status decode_segments(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                         const Place& place, const Sink& sink) const {
    const Layout layout = this->layout(n);
    if (in.size() < layout.digits_at()) {
      return wire_error("the payload has " + std::to_string(in.size()) +
                        " bytes; the scales and words of " + std::to_string(n) +
                        " elements alone have " + std::to_string(layout.digits_at()));
    }
    const Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kSymbolSlot, n);
    if (symbols.empty()) return capacity_error("out of memory while decoding indices");
    std::vector<DigitsChunk> chunks;
    Span<const std::uint8_t> rest;
    GRADCOMP_TRY(read_chunks(layout, in, &chunks, symbols.data(), &rest));
    Span<Outlier> outliers;
    GRADCOMP_TRY(read_outliers(rest, n, call, &outliers));
    const Rotation rotation(n, call.stream);
    const std::uint8_t* const scales = in.data();
    return for_each<Reader>(layout.segments(), layout, call, [&](std::size_t index, Reader& space) {
      const Segment segment = layout.segment(index);
      for_blocks(layout, segment, [&](std::size_t, const Block& block) {
        polar_decode(nodes(block), block.log2,
                     in.data() + layout.words_at() + 8 * lattice_words(block.begin),
                     space.bits + (block.begin - segment.begin));
      });
      draw_mask(segment, rotation.stream(), space.mask);
      kernels().polar->xor_words(space.bits, space.mask, segment.end - segment.begin);
      const auto fill = [&](std::size_t begin, std::size_t end, float* y) {
        points(layout, segment, scales, chunks, symbols.data(), {outliers.data(), outliers.size()},
               space, begin, end, y);
      };
      expand(layout, segment, rotation, scales, space, fill, place, sink);
    });
  }

  // Calls sink(begin, values, count) for runs of decoded elements of the segment. `place(begin,
  // buffer)` says where they are decoded to, and fill(begin, end, y) makes them, still rotated.
  template <typename Fill, typename Place, typename Sink>
  void expand(const Layout& layout, const Segment& segment, const Rotation& rotation,
              const std::uint8_t* scales, Reader& space, const Fill& fill, const Place& place,
              const Sink& sink) const {
    const std::size_t begin = layout.first(segment);
    const std::size_t end = begin + layout.elements(segment);
    if (!rotated_) {
      for (std::size_t first = begin; first < end; first += kRotationBlock) {
        const std::size_t last = std::min(first + kRotationBlock, end);
        float* const v = place(first, space.floats);
        fill(first, last, v);
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
      fill(begin, end, v);
      gather(v, begin / kRotationBlock, (end - begin) / kRotationBlock, rotation.stream());
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile);
      const std::size_t size = rotation.tile_size(tile);
      float* const v = place(first, unbiased_ ? space.floats + (first - begin) : space.floats);
      if (!usable) {
        std::fill(v, v + size, std::numeric_limits<float>::quiet_NaN());
      } else {
        if (!unbiased_) fill(first, first + size, v);
        rotation.inverse(tile, v);
      }
      sink(first, v, size);
    });
  }

  double rate_;
  std::string n_;
  bool unbiased_;
  bool rotated_;
  bool best_;
  LatticeDesign design_;
  Magnitudes normal_;
  std::vector<std::vector<SubtreeKind>> nodes_;        // of whole codes, by log2
  std::vector<std::vector<SubtreeKind>> short_nodes_;  // of codes cut short, by rows - 1
};

}  // namespace

StageInfo polar_ec_stage() {
  StageInfo stage;
  stage.name = "polar_ec";
  stage.id = 27;
  stage.summary =
      "points of a lattice, half chosen by polar codes and half entropy coded, at 0.5 to 4 bits "
      "per "
      "element: within 0.3 dB of the least error that any code of that rate can have on normal "
      "values";
  stage.paper =
      "Korada, Urbanke: Polar Codes are Optimal for Lossy Source Coding, IEEE Trans. Inf. Theory "
      "2010; entropy coding of cosets: Fischer, Wang: Entropy-Constrained Trellis-Coded "
      "Quantization, IEEE Trans. Inf. Theory 1992";
  stage.nonfinite =
      "a NaN or Inf makes its segment of up to 2^20 elements NaN; tensors of fewer than 64 "
      "elements "
      "keep it";
  stage.example = "polar_ec(rate=1)";
  stage.params = {
      real_param("rate", "1", 0.5, 4, "bits per element on the wire, within 2 %, all included"),
      choice_param("n", "auto", "auto|1024|4096|16384",
                   "length of the codes, of which 64 make up a block; auto: by the tensor's size"),
      boolean_param("unbiased", "false",
                    "rotate whole blocks, and take the scale that makes the mean right"),
      polar_preset_param(),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<PolarEc>(recipe);
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
