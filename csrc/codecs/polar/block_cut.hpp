// Division of a tensor into blocks of 64 codes, common to polar_b and polar_ec.
// docs/wire-format.md#polar_b is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "coding/rotation.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {

// Rows of one block of the rotation, a tile. A segment begins with a code of at least this length.
inline constexpr std::size_t kTileRows = kRotationBlock / kLanes;

// Log2 of the shortest and of the longest full code.
inline constexpr unsigned kMinPolarLog2 = 10;
inline constexpr unsigned kMaxPolarLog2 = 14;

inline unsigned floor_log2(std::size_t n) {
  unsigned log2 = 0;
  while (n >> log2 > 1) ++log2;
  return log2;
}

// Rows of 64 elements with one scale: one codeword in each of the 64 lanes. The code has 2^log2
// rows; rows beyond the block's end are not sent.
struct Block {
  std::size_t begin;
  std::size_t end;
  unsigned log2;
};

// Unit of coding: one block. The last segment has a second block for the rows that whole tiles
// leave over.
struct Segment {
  std::size_t begin;  // in rows
  std::size_t end;
  std::size_t first_block;
  std::size_t last_block;
};

// Log2 of the rows of a full block for the parameter `n`. "auto" depends on the tensor's size:
// longer codes are better, as long as a few blocks of them make up most of the tensor.
unsigned polar_block_log2(const std::string& parameter, std::size_t numel);

// Blocks and segments of a tensor of n >= kMinPolarNumel elements.
class BlockCut {
 public:
  BlockCut(std::size_t n, unsigned log2);

  std::size_t numel() const { return n_; }
  std::size_t rows() const { return rows_; }
  std::size_t blocks() const { return blocks_; }
  std::size_t segments() const { return mains_ == 0 ? 1 : mains_; }
  // Upper bound for the rows of a segment and of a code.
  std::size_t max_rows() const {
    return (std::size_t{1} << (full_ != 0 ? log2_ : floor_log2(rows_))) + kTileRows;
  }
  std::size_t elements(const Block& block) const {
    return std::min(kLanes * block.end, n_) - kLanes * block.begin;
  }
  // First element of the segment, and its number of elements.
  std::size_t first(const Segment& segment) const { return kLanes * segment.begin; }
  std::size_t elements(const Segment& segment) const {
    return std::min(kLanes * segment.end, n_) - kLanes * segment.begin;
  }

  Block block(std::size_t index) const;
  Segment segment(std::size_t index) const;

 private:
  std::size_t n_;
  unsigned log2_;          // log2 of the rows of a full block
  std::size_t rows_;       // the last one may have fewer elements
  std::size_t tile_rows_;  // rows in whole tiles
  std::size_t full_;       // number of full blocks
  std::size_t mains_;      // number of blocks that make up tile_rows_
  std::size_t blocks_;
};

// Calls fn(index, block) for the blocks of a segment.
template <typename Fn>
void for_blocks(const BlockCut& cut, const Segment& segment, const Fn& fn) {
  for (std::size_t index = segment.first_block; index <= segment.last_block; ++index) {
    fn(index, cut.block(index));
  }
}

// Calls fn(tile) for the tiles in the segment.
template <typename Fn>
void for_tiles(const Segment& segment, const Fn& fn) {
  const std::size_t first = segment.begin / kTileRows;
  // A last block of less than a tile belongs to the tile before, if there is one.
  const std::size_t rows = segment.end - segment.begin;
  const std::size_t count = segment.first_block == segment.last_block
                                ? (rows + kTileRows - 1) / kTileRows
                                : (rows - 1) / kTileRows;
  for (std::size_t tile = first; tile < first + count; ++tile) fn(tile);
}

}  // namespace gradcomp
