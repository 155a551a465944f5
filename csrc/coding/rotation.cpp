#include "coding/rotation.hpp"

#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Far beyond the random words that codecs draw for their elements.
constexpr std::uint64_t kFirstWord = std::uint64_t{1} << 40;
constexpr std::size_t kBlockWords = kRotationBlock / 32;

}  // namespace

Rotation::Rotation(std::size_t n, std::uint64_t stream) noexcept : stream_(stream) {
  if (n == 0) return;
  while (log2_ < 12 && std::size_t{2} << log2_ <= n) ++log2_;
  static_assert(kRotationBlock == std::size_t{1} << 12, "the limit of log2_");
  block_ = std::size_t{1} << log2_;
  tiles_ = n / block_;
  overlap_ = n % block_;
  // 2^(-log2 / 2): exact, or rounded once.
  factor_ = log2_ % 2 == 0 ? 1.0f : 0.70710678f;
  for (unsigned i = 0; i < log2_ / 2; ++i) factor_ *= 0.5f;
}

void Rotation::flip(std::size_t block, const float* x, float* y) const noexcept {
  std::uint32_t words[kBlockWords];
  kernels().random_words(stream_, kFirstWord + block * kBlockWords, words, (block_ + 31) / 32);
  kernels().flip_signs(x, words, factor_, y, block_);
}

void Rotation::forward(std::size_t tile, const float* x, float* rotated) const noexcept {
  flip(tile, x, rotated);
  kernels().hadamard(rotated, log2_);
  const std::size_t beyond = tile_size(tile) - block_;
  if (beyond == 0) return;
  if (x != rotated) std::memcpy(rotated + block_, x + block_, 4 * beyond);
  flip(tile + 1, rotated + beyond, rotated + beyond);
  kernels().hadamard(rotated + beyond, log2_);
}

void Rotation::inverse(std::size_t tile, float* rotated) const noexcept {
  const std::size_t beyond = tile_size(tile) - block_;
  if (beyond != 0) {
    kernels().hadamard(rotated + beyond, log2_);
    flip(tile + 1, rotated + beyond, rotated + beyond);
  }
  kernels().hadamard(rotated, log2_);
  flip(tile, rotated, rotated);
}

}  // namespace gradcomp
