// Payload of polar_ec: layout, codes and outliers, and checked reading.
// docs/wire-format.md#polar_ec is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/codec.hpp"
#include "codecs/polar/block_cut.hpp"
#include "coding/digits.hpp"
#include "polar/lattice_code.hpp"
#include "polar/lattice_step.hpp"

namespace gradcomp {

// Scratch slots; slot 0 has the threads' working memory.
inline constexpr std::size_t kPolarEcSymbolSlot = 1;
inline constexpr std::size_t kPolarEcOutlierSlot = 2;

// An element beyond all points, sent unchanged.
struct Outlier {
  std::uint32_t at;
  float value;
};
static_assert(sizeof(Outlier) == kOutlierBytes, "as on the wire");

// Elements per outlier, at least.
inline constexpr std::size_t kOutlierShare = 64;

inline std::size_t words_of(const Block& block) {
  return lattice_words(block.end) - lattice_words(block.begin);
}

// Elements whose indices are coded together, unless a block has more.
inline constexpr std::size_t kMinPolarEcChunk = std::size_t{1} << 18;

// Division of a tensor, and positions of its parts in a payload.
class PolarEcLayout : public BlockCut {
 public:
  PolarEcLayout(std::size_t n, unsigned log2)
      : BlockCut(n, log2),
        chunk_(std::max(kMinPolarEcChunk, kLanes << log2)),
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

  // A unit is encoded by one thread: the segments of a chunk. The last unit takes the rest of the
  // tensor.
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
  // Upper bound for the elements of a unit.
  std::size_t max_unit() const { return std::min(numel(), chunk_ + kRotationBlock); }

 private:
  std::size_t chunk_;  // in elements
  std::size_t segments_each_;
};

// Trees of all codes.
class PolarEcTrees {
 public:
  PolarEcTrees();

  const SubtreeKind* of(const Block& block) const {
    const std::size_t rows = block.end - block.begin;
    const bool whole = rows == std::size_t{1} << block.log2;
    return (whole ? whole_[block.log2] : short_[rows - 1]).data();
  }

 private:
  std::vector<std::vector<SubtreeKind>> whole_;  // by log2
  std::vector<std::vector<SubtreeKind>> short_;  // codes cut short, by rows - 1
};

// Finds the chunks of indices and decodes them to `symbols`: chunk c begins at c * layout.chunk().
// `rest` becomes the payload after them.
Status read_chunks(const PolarEcLayout& layout, Span<const std::uint8_t> in,
                   std::vector<DigitsChunk>* chunks, std::uint8_t* symbols,
                   Span<const std::uint8_t>* rest);

// Reads the outliers of a tensor of n elements, which fill `in`.
Status read_outliers(Span<const std::uint8_t> in, std::size_t n, const Call& call,
                     Span<const Outlier>* outliers);

}  // namespace gradcomp
