// Cuts a matrix into tiles of about kTile elements, and gives each its share of the kept elements.
#pragma once

#include <algorithm>
#include <cstddef>

namespace gradcomp {

inline constexpr std::size_t kTileSide = 64;
inline constexpr std::size_t kTile = kTileSide * kTileSide;  // most elements of a tile

// A tile, and where it begins: in the tensor, in tile order, and among the kept elements. Tile
// order goes through the tiles row by row, and in each through its elements row by row.
struct Tile {
  std::size_t corner;
  std::size_t begin;
  std::size_t first_kept;
  std::size_t height;
  std::size_t width;
  std::size_t kept;

  std::size_t size() const noexcept { return height * width; }
};

class Tiling {
 public:
  // A matrix of n / cols rows; cols divides n. A vector is a row. `kept` elements of a tile of
  // kTile elements are kept, 1 to kTile.
  Tiling(std::size_t n, std::size_t cols, std::size_t kept) noexcept : kept_(kept), cols_(cols) {
    if (n == 0) return;
    rows_ = n / cols;
    height_ = std::min(rows_, kTileSide);
    width_ = std::min(cols, kTile / height_);
    height_ = std::min(rows_, kTile / width_);
    down_ = (rows_ + height_ - 1) / height_;
    across_ = (cols + width_ - 1) / width_;
  }

  std::size_t tiles() const noexcept { return down_ * across_; }

  std::size_t kept() const noexcept {
    if (tiles() == 0) return 0;
    return (down_ - 1) * kept_of_row(height_) + kept_of_row(last_height());
  }

  Tile tile(std::size_t i) const noexcept {
    const std::size_t y = i / across_;
    const std::size_t x = i % across_;
    Tile tile;
    tile.height = y + 1 == down_ ? last_height() : height_;
    tile.width = x + 1 == across_ ? last_width() : width_;
    tile.kept = kept_of(tile.size());
    tile.corner = y * height_ * cols_ + x * width_;
    tile.begin = y * height_ * cols_ + x * width_ * tile.height;
    tile.first_kept = y * kept_of_row(height_) + x * kept_of(width_ * tile.height);
    return tile;
  }

  std::size_t cols() const noexcept { return cols_; }

  // Upper bound of kept() for n elements in any shape. There are at most n / 1024 + 1 tiles, as
  // only the last ones of a row or column are smaller; each adds less than 1 to its share.
  static std::size_t max_kept(std::size_t n, std::size_t kept) noexcept {
    return std::min(n, n * kept / kTile + n / 1024 + 2);
  }

 private:
  std::size_t last_height() const noexcept { return rows_ - (down_ - 1) * height_; }
  std::size_t last_width() const noexcept { return cols_ - (across_ - 1) * width_; }
  // The share of a tile, rounded to the nearest integer, and at least 1.
  std::size_t kept_of(std::size_t size) const noexcept {
    return std::max<std::size_t>((size * kept_ + kTile / 2) / kTile, 1);
  }
  std::size_t kept_of_row(std::size_t height) const noexcept {
    return (across_ - 1) * kept_of(height * width_) + kept_of(height * last_width());
  }

  std::size_t kept_;
  std::size_t cols_;
  std::size_t rows_ = 0;
  std::size_t height_ = 0;
  std::size_t width_ = 0;
  std::size_t down_ = 0;    // rows of tiles
  std::size_t across_ = 0;  // tiles in a row
};

}  // namespace gradcomp
