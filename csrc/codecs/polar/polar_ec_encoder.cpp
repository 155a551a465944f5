#include "codecs/polar/polar_ec_encoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bytes.hpp"
#include "codecs/polar/thread_space.hpp"
#include "coding/digits.hpp"
#include "kernels/kernels.hpp"
#include "polar/block_coder.hpp"
#include "polar/lattice.hpp"
#include "polar/list_coder.hpp"

namespace gradcomp {
namespace {

// Step, in root mean squares, of segments without an element of a whole step. With the common step,
// such small elements would hardly affect the code's decisions.
constexpr double kQuietStep = 5;

// Approximate upper bound for the tiles that are sampled to choose the step.
constexpr std::size_t kSampledTiles = 64;

// Least size of indices in bits per element; largest relative error of the payload's size; largest
// number of steps that are tried.
constexpr double kMinIndexBits = 0.001;
constexpr double kTolerance = 0.015;
constexpr int kMaxPasses = 6;

constexpr int kOutlierPlace = static_cast<int>(kLatticeTop);

}  // namespace

// Outliers of one unit, in ascending order.
class PolarEcEncoder::Outliers {
 public:
  Outliers(Outlier* first, std::size_t capacity) : first_(first), capacity_(capacity) {}

  Outlier* begin() const { return first_; }
  Outlier* end() const { return first_ + count_; }
  std::size_t count() const { return count_; }
  // False once an outlier did not fit.
  bool complete() const { return complete_; }

  void add(std::size_t at, float value) {
    complete_ = complete_ && count_ < capacity_;
    if (complete_) first_[count_++] = {static_cast<std::uint32_t>(at), value};
  }
  // Forgets all but the first `count` ones.
  void keep(std::size_t count) {
    count_ = count;
    complete_ = true;
  }

 private:
  Outlier* first_;
  std::size_t capacity_;
  std::size_t count_ = 0;
  bool complete_ = true;
};

// Working memory of one thread.
struct PolarEcEncoder::EncodeSpace {
  EncodeSpace(Carver& carver, const PolarEcLayout& layout, bool whole_blocks, bool best)
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
  std::int8_t* list_llr;  // with `best`: for polar_list_encode()
  std::uint64_t* list_bits;
};

PolarEcEncoder::PolarEcEncoder(const PolarParams& params, const PolarEcTrees& trees)
    : params_(params),
      trees_(trees),
      design_(params.rate),
      normal_(params.unbiased ? Magnitudes::normal() : Magnitudes()) {}

Status PolarEcEncoder::encode(const PolarEcLayout& layout, Span<const float> x, const Call& call,
                              std::uint8_t* out, std::size_t* written) const {
  const std::size_t n = x.size();
  const Rotation rotation(n, call.stream);
  const Magnitudes sampled = params_.unbiased ? Magnitudes() : sample(rotation, x.data(), n);
  const Magnitudes& magnitudes = params_.unbiased ? normal_ : sampled;
  const auto elements = static_cast<double>(n);
  const double asked =
      params_.rate * elements / 8 - static_cast<double>(kFrameBytes + kFrameStream);
  // Besides their entropy, the indices of a chunk take about 112 bytes: the states of rANS and a
  // short table.
  const double fixed = static_cast<double>(layout.digits_at() + 112 * layout.chunks());
  double bits = 8 * (asked - fixed) / elements;
  double step = design_.find_step(magnitudes, std::max(bits, kMinIndexBits));
  for (int pass = 1;; ++pass) {
    GRADCOMP_TRY(encode_at(layout, rotation, x.data(), step, call, out, written));
    const double excess = static_cast<double>(*written) - asked;
    if (std::fabs(excess) <= kTolerance * asked || pass == kMaxPasses) return {};
    bits = std::max(bits, kMinIndexBits) - 8 * excess / elements;
    const double last = step;
    step = design_.find_step(magnitudes, std::max(bits, kMinIndexBits));
    if (step == last) return {};
  }
}

Magnitudes PolarEcEncoder::sample(const Rotation& rotation, const float* x, std::size_t n) const {
  Magnitudes result;
  if (!params_.rotated && rotation.tiles() * kRotationBlock > n) {
    result.add(x, n);
    return result;
  }
  alignas(64) float buffer[Rotation::kMaxTile];
  // Odd, so that no period of the tensor fits it.
  const std::size_t stride = rotation.tiles() / kSampledTiles | 1;
  for (std::size_t tile = 0; tile < rotation.tiles(); tile += stride) {
    const float* v = x + rotation.tile_begin(tile);
    if (params_.rotated) {
      rotation.forward(tile, v, buffer);
      v = buffer;
    }
    result.add(v, rotation.tile_size(tile));
  }
  return result;
}

// Encodes with one step; with unbiased=true, it is in root mean squares of the segment.
Status PolarEcEncoder::encode_at(const PolarEcLayout& layout, const Rotation& rotation,
                                 const float* x, double step, const Call& call,
                                 std::uint8_t* payload, std::size_t* written) const {
  // Chunks are first written where they would begin if all before them had the greatest length.
  const auto place = [&](std::size_t chunk) {
    return payload + layout.digits_at() + (kDigitsHeader + layout.chunk()) * chunk;
  };
  const Span<Outlier> memory =
      call.scratch->get<Outlier>(kPolarEcOutlierSlot, layout.max_outliers() + 1);
  if (memory.empty()) return capacity_error("out of memory while coding outliers");
  // Each unit has its own part of the outliers' memory.
  const auto outliers_at = [&](std::size_t unit) {
    return layout.unit_begin(unit) / kOutlierShare;
  };
  std::vector<std::size_t> counts(layout.units());
  GRADCOMP_TRY(for_each_with_space<EncodeSpace>(
      layout.units(), call,
      [&](std::size_t unit, EncodeSpace& space) {
        // Unbiased scales need the sums over all elements, so there are no outliers.
        const std::size_t capacity =
            params_.unbiased ? 0 : outliers_at(unit + 1) - outliers_at(unit);
        Outliers outliers(memory.data() + outliers_at(unit), capacity);
        const std::size_t begin = layout.unit_begin(unit);
        for (std::size_t i = layout.first_segment(unit); i < layout.first_segment(unit + 1); ++i) {
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
      },
      layout, params_.unbiased, params_.best));
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

double PolarEcEncoder::block_step(const PolarEcLayout& layout, const Block& block,
                                  double step) const {
  return step * std::sqrt(params_.spread_gain(layout, block));
}

// Fills space.floats with the whole segment after both rotations.
void PolarEcEncoder::spread_segment(const PolarEcLayout& layout, const Segment& segment,
                                    const Rotation& rotation, const float* x,
                                    EncodeSpace& space) const {
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
std::uint32_t PolarEcEncoder::find_places(const PolarEcLayout& layout, const Segment& segment,
                                          const Rotation& rotation, const float* x, double step,
                                          EncodeSpace& space, Outliers* outliers) const {
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
  if (params_.unbiased) {
    for_blocks(layout, segment, [&](std::size_t, const Block& block) {
      const std::size_t first = kLanes * block.begin - begin;
      find(space.floats + first, first, layout.elements(block), block_step(layout, block, step));
    });
  } else if (params_.rotated) {
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

// Codes one block, from its places and LLRs.
LatticeSums PolarEcEncoder::encode_block(const PolarEcLayout& layout, const Segment& segment,
                                         const Block& block, std::size_t unit_begin,
                                         const Outlier* outliers, const Outlier* outliers_end,
                                         EncodeSpace& space, std::uint8_t* payload) const {
  const std::size_t at = block.begin - segment.begin;
  const std::size_t rows = block.end - block.begin;
  const std::size_t elements = layout.elements(block);
  std::int8_t* const llr = space.llr + kLanes * at;
  // Rows of the code beyond the block may have any value.
  std::memset(llr + elements, 0, (kLanes << block.log2) - elements);
  std::uint8_t* const words = payload + layout.words_at() + 8 * lattice_words(block.begin);
  if (params_.best) {
    polar_list_encode(trees_.of(block), block.log2, llr,
                      {space.list_llr, space.work, space.list_bits}, space.bits + at, words);
  } else {
    polar_encode(trees_.of(block), block.log2, llr, space.work, space.bits + at, words);
  }
  kernels().polar->xor_words(space.bits + at, space.mask + at, rows);
  LatticeSums sums = kernels().polar->lattice_indices(
      space.places + kLanes * at, space.bits + at, design_.rule(),
      space.indices + (kLanes * block.begin - unit_begin), elements);
  // Outliers do not count in the sums; they get the cheapest index.
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

// Writes the segment's scales and words to the payload, its indices to the unit's, and adds to
// the outliers.
void PolarEcEncoder::encode_segment(const PolarEcLayout& layout, const Segment& segment,
                                    const Rotation& rotation, const float* x, double step,
                                    std::size_t unit_begin, EncodeSpace& space, Outliers* outliers,
                                    std::uint8_t* payload) const {
  const std::size_t begin = layout.first(segment);
  const std::size_t count = layout.elements(segment);
  draw_mask(segment, rotation.stream(), space.mask);
  const auto rms_of_all = [&] {
    return std::sqrt(kernels().sum_squares(x + begin, count) / static_cast<double>(count));
  };
  if (params_.unbiased) {
    spread_segment(layout, segment, rotation, x, space);
    step *= rms_of_all();
  }
  bool own_step = params_.unbiased;
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
  // All elements are zero, or one is not finite.
  const float scale = step < kMinPolarRms ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  for_blocks(layout, segment, [&](std::size_t index, const Block& block) {
    store(payload + 4 * index, scale);
    std::memset(payload + layout.words_at() + 8 * lattice_words(block.begin), 0,
                8 * words_of(block));
    std::memset(space.indices + (kLanes * block.begin - unit_begin), 0, layout.elements(block));
  });
}

float PolarEcEncoder::scale_of(const PolarEcLayout& layout, const Segment& segment,
                               const Block& block, double step, float largest,
                               const LatticeSums& sums, const EncodeSpace& space) const {
  if (sums.product <= 0) return 0.0f;
  const double at = block_step(layout, block, step);
  const auto product = static_cast<double>(sums.product);
  const auto energy = static_cast<double>(sums.energy);
  if (!params_.rotated) {
    // The largest point must not overflow.
    const double limit = static_cast<double>(std::numeric_limits<float>::max()) /
                         (std::min(static_cast<double>(largest) / at, 255.0) + 2);
    return static_cast<float>(std::min(at / 16 * product / energy, limit));
  }
  double scale = at / 16 * product / energy;
  if (params_.unbiased) {
    const float* const v = space.floats + kLanes * (block.begin - segment.begin);
    const double squares = kernels().sum_squares(v, layout.elements(block));
    scale = squares / (at / 64 * product);
  }
  scale /= params_.spread_gain(layout, block);
  return scale <= static_cast<double>(kMaxRotatedScale) ? static_cast<float>(scale)
                                                        : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace gradcomp
