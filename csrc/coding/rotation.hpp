// Randomised Hadamard rotation: an orthonormal map that makes the elements of any dense vector
// nearly normal, with one variance. docs/wire-format.md#rotation is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline constexpr std::size_t kRotationBlock = 4096;  // floats: 16 KiB, which fits L1

// Rotation of n elements, by tiles: runs of elements that are rotated independently. Tile i begins
// at element i * kRotationBlock. Every tile is one block, except that the last may be a block and a
// half: if blocks do not divide n, one more block over the last elements rotates some elements of
// its neighbour again. So nothing is padded, and no element is in a tiny block.
//
// A rotated tile consists of one or two groups. A group is the output of one block, so its elements
// have one variance. Quantizers give each group its own scale.
class Rotation {
 public:
  static constexpr std::size_t kMaxTile = 2 * kRotationBlock - 1;

  Rotation(std::size_t n, std::uint64_t stream) noexcept;

  std::uint64_t stream() const noexcept { return stream_; }
  unsigned log2() const noexcept { return log2_; }   // of a block's elements
  float factor() const noexcept { return factor_; }  // that keeps norms
  std::size_t tiles() const noexcept { return tiles_; }
  std::size_t groups() const noexcept { return tiles_ + (overlap_ != 0 ? 1 : 0); }
  std::size_t tile_begin(std::size_t tile) const noexcept { return tile * kRotationBlock; }
  std::size_t tile_size(std::size_t tile) const noexcept {
    return block_ + (tile + 1 == tiles_ ? overlap_ : 0);
  }
  // Size of the tile's first group, which has the number `tile`. The rest, if any, is group tile +
  // 1.
  std::size_t first_group(std::size_t tile) const noexcept {
    return tile + 1 == tiles_ && overlap_ != 0 ? overlap_ : block_;
  }

  // Both arrays have tile_size(tile) floats; x and rotated may be equal.
  void forward(std::size_t tile, const float* x, float* rotated) const noexcept;
  void inverse(std::size_t tile, float* rotated) const noexcept;

 private:
  void flip(std::size_t block, const float* x, float* y) const noexcept;

  std::uint64_t stream_;
  unsigned log2_ = 0;
  std::size_t block_ = 0;    // elements of a block
  std::size_t tiles_ = 0;    // whole blocks in n
  std::size_t overlap_ = 0;  // elements beyond the last whole block
  float factor_ = 1;
};

}  // namespace gradcomp
