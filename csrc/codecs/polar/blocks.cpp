#include "codecs/polar/blocks.hpp"

#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr unsigned kRotationLog2 = 12;
static_assert(kRotationBlock == std::size_t{1} << kRotationLog2, "of the rotation's blocks");

// Where the random words of the second rotation begin; those of the first are at 2^40.
constexpr std::uint64_t kSpreadWord = std::uint64_t{1} << 41;

constexpr std::size_t kMaxTiles = (std::size_t{1} << kMaxPolarLog2) / kTileRows;  // of a block

// The Walsh-Hadamard transform across `count` tiles, a power of two, without scaling.
void mix_tiles(float* x, std::size_t count) {
  // A cache line of every tile at a time, side by side: tiles are so far apart that their lines
  // would drive each other out of the cache.
  constexpr std::size_t kColumns = 16;
  alignas(64) float lines[kMaxTiles][kColumns];
  for (std::size_t column = 0; count > 1 && column < kRotationBlock; column += kColumns) {
    for (std::size_t tile = 0; tile < count; ++tile) {
      std::memcpy(lines[tile], x + tile * kRotationBlock + column, sizeof lines[0]);
    }
    for (std::size_t stride = 1; stride < count; stride *= 2) {
      for (std::size_t tile = 0; tile < count; ++tile) {
        if ((tile & stride) != 0) continue;
        float* const a = lines[tile];
        float* const b = lines[tile + stride];
        float sums[kColumns], differences[kColumns];  // so that the compiler sees no overlap
        for (std::size_t j = 0; j < kColumns; ++j) {
          sums[j] = a[j] + b[j];
          differences[j] = a[j] - b[j];
        }
        std::memcpy(a, sums, sizeof sums);
        std::memcpy(b, differences, sizeof differences);
      }
    }
    for (std::size_t tile = 0; tile < count; ++tile) {
      std::memcpy(x + tile * kRotationBlock + column, lines[tile], sizeof lines[0]);
    }
  }
}

// Signs of tile `tile` of the second rotation, and the factor that makes its Hadamard transform
// orthonormal.
void flip_tile(std::size_t tile, std::uint64_t stream, float* v) {
  constexpr std::size_t kWords = kRotationBlock / 32;
  constexpr float kFactor = 1.0f / 64;
  static_assert(kRotationBlock == 64 * 64, "kFactor");
  std::uint32_t words[kWords];
  kernels().random_words(stream, kSpreadWord + tile * kWords, words, kWords);
  kernels().flip_signs(v, words, kFactor, v, kRotationBlock);
}

}  // namespace

unsigned polar_block_log2(const std::string& parameter, std::size_t numel) {
  if (parameter != "auto") return floor_log2(std::stoul(parameter));
  unsigned log2 = kMinPolarLog2;
  for (unsigned longer = log2 + 2; longer <= kMaxPolarLog2; longer += 2) {
    if (numel >> longer >= kLanes) log2 = longer;
  }
  return log2;
}

BlockCut::BlockCut(std::size_t n, unsigned log2)
    : n_(n),
      log2_(log2),
      rows_((n + kLanes - 1) / kLanes),
      tile_rows_(n / kRotationBlock * kTileRows),
      full_(tile_rows_ >> log2),
      mains_(full_) {
  for (std::size_t rest = tile_rows_ - (full_ << log2); rest != 0; rest &= rest - 1) ++mains_;
  blocks_ = mains_ + (rows_ > tile_rows_ ? 1 : 0);
}

Block BlockCut::block(std::size_t index) const {
  if (index < full_) return {index << log2_, (index + 1) << log2_, log2_};
  std::size_t begin = full_ << log2_;
  for (std::size_t i = full_; begin < tile_rows_; ++i) {
    const unsigned log2 = floor_log2(tile_rows_ - begin);
    const std::size_t end = begin + (std::size_t{1} << log2);
    if (i == index) return {begin, end, log2};
    begin = end;
  }
  const std::size_t rest = rows_ - begin;
  const unsigned log2 = floor_log2(rest);
  return {begin, rows_, rest == std::size_t{1} << log2 ? log2 : log2 + 1};
}

Segment BlockCut::segment(std::size_t index) const {
  const bool last = index + 1 == segments();
  return {block(index).begin, last ? rows_ : block(index).end, index, last ? blocks_ - 1 : index};
}

void draw_mask(const Segment& segment, std::uint64_t stream, std::uint64_t* mask) {
  kernels().random_words(stream, 2 * segment.begin, reinterpret_cast<std::uint32_t*>(mask),
                         2 * (segment.end - segment.begin));
}

void spread(float* v, std::size_t first, std::size_t count, std::uint64_t stream) {
  mix_tiles(v, count);
  for (std::size_t i = 0; i < count; ++i) {
    flip_tile(first + i, stream, v + kRotationBlock * i);
    kernels().hadamard(v + kRotationBlock * i, kRotationLog2);
  }
}

void gather(float* v, std::size_t first, std::size_t count, std::uint64_t stream) {
  for (std::size_t i = 0; i < count; ++i) {
    kernels().hadamard(v + kRotationBlock * i, kRotationLog2);
    flip_tile(first + i, stream, v + kRotationBlock * i);
  }
  mix_tiles(v, count);
}

ParamInfo polar_preset_param() {
  return choice_param("preset", nullptr, "best",
                      "best: lists of 8 codewords per code, a smaller error for a slower encoder; "
                      "without: one");
}

}  // namespace gradcomp
