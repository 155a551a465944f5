// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). Draw i is a pure function of (key, i), so the same bytes
// come out at any thread count and on any instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradcomp {

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0,
                              std::uint32_t key1) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Key of one tensor's random stream in one step: the same on every rank that passes the same three
// numbers, and different for any other three with overwhelming probability.
inline std::uint64_t derive_stream(std::uint64_t seed, std::uint64_t step,
                                   std::uint64_t tensor_id) noexcept {
  const PhiloxBlock block = philox4x32(
      {static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
       static_cast<std::uint32_t>(tensor_id), static_cast<std::uint32_t>(tensor_id >> 32)},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return std::uint64_t{block[1]} << 32 | block[0];
}

// Uses of random blocks, in the third counter word. Word u of a use is word u % 4 of its block u /
// 4.
inline constexpr std::uint32_t kDrawBlocks = 0;  // 64-bit draws, see Stream
inline constexpr std::uint32_t kWordBlocks = 1;  // random words
// Rounding words: thresholds for stochastic rounding. Elements i and i + 16 of a run of 32 share
// word 16 * (i / 32) + i % 16; the second one swaps its halves. Each word is uniform, so the
// probability of rounding up is the same as with a separate word: no bias, the same expected
// squared error. Except with probability 2^-16, the upper half of the word alone decides, and the
// halves are independent. Hence the covariance of the two decisions is below 2^-16.
inline constexpr std::uint32_t kRoundingBlocks = 2;

inline PhiloxBlock stream_block(std::uint64_t stream, std::uint32_t use,
                                std::uint64_t block) noexcept {
  return philox4x32(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), use, 0},
      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32));
}

__extension__ typedef unsigned __int128 Uint128;  // not ISO C++, hence the marker

// Maps a 64-bit draw to [0, bound) by multiply-shift; the bias is below bound / 2^64.
inline std::uint64_t scale_draw(std::uint64_t draw, std::uint64_t bound) noexcept {
  return static_cast<std::uint64_t>((static_cast<Uint128>(draw) * bound) >> 64);
}

// The 64-bit draws 0, 1, 2, ... of a stream, two per Philox block.
inline std::uint64_t draw_at(std::uint64_t stream, std::uint64_t draw) noexcept {
  const PhiloxBlock block = stream_block(stream, kDrawBlocks, draw / 2);
  const std::size_t half = 2 * (draw % 2);
  return std::uint64_t{block[half + 1]} << 32 | block[half];
}

// Reads the draws in sequence.
class Stream {
 public:
  explicit Stream(std::uint64_t key) noexcept : key_(key) {}

  std::uint64_t next() noexcept {
    if (draw_ % 2 == 0) block_ = stream_block(key_, kDrawBlocks, draw_ / 2);
    const std::size_t half = 2 * (draw_ % 2);
    ++draw_;
    return std::uint64_t{block_[half + 1]} << 32 | block_[half];
  }

  std::uint64_t below(std::uint64_t bound) noexcept { return scale_draw(next(), bound); }

 private:
  std::uint64_t key_;
  std::uint64_t draw_ = 0;
  PhiloxBlock block_{};
};

}  // namespace gradcomp
