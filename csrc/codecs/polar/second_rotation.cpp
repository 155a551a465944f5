#include "codecs/polar/second_rotation.hpp"

#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr unsigned kRotationLog2 = 12;
static_assert(kRotationBlock == std::size_t{1} << kRotationLog2, "log2 of the rotation's block");

// First random word of the second rotation. The first rotation begins at word 2^40.
constexpr std::uint64_t kSpreadWord = std::uint64_t{1} << 41;

constexpr std::size_t kMaxTiles = (std::size_t{1} << kMaxPolarLog2) / kTileRows;  // in a block

// The Walsh-Hadamard transform across `count` tiles, a power of two, without scaling.
void mix_tiles(float* x, std::size_t count) {
  // One cache line of every tile at a time, copied side by side: in place, the lines would evict
  // each other, because tiles are a power of two apart.
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
        float sums[kColumns],
            differences[kColumns];  // locals, so that the compiler sees no overlap
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

// Flips the signs of tile `tile` and applies the factor that makes its Hadamard transform
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

}  // namespace gradcomp
