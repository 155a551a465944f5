// The polar transform over GF(2), x = u G with G = [[1, 0], [1, 1]]^(x)n: Arikan, "Channel
// Polarization", IEEE Trans. Inf. Theory 55(7), 2009, section VII, without his bit-reversal B_N.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradcomp::polar_code {

// Lengths are at most 2^kMaxLog2.
inline constexpr unsigned kMaxLog2 = 20;

inline std::size_t reverse_bits(std::size_t index, unsigned log2) noexcept {
  std::size_t reversed = 0;
  for (unsigned bit = 0; bit < log2; ++bit) reversed |= (index >> bit & 1) << (log2 - 1 - bit);
  return reversed;
}

// x[i] ^= x[i + h] for h = 1, 2, 4, ... and every i whose bit h is clear. Its own inverse.
// words: 2^log2 bits, element i in bit i % 64 of word i / 64; bits beyond the last element are 0.
void transform_packed(std::uint64_t* words, unsigned log2) noexcept;

// Converts to and from elements of one byte each, 0 or 1. `words` has (size + 63) / 64 words.
void pack_bits(const std::uint8_t* bits, std::size_t size, std::uint64_t* words) noexcept;
void unpack_bits(const std::uint64_t* words, std::size_t size, std::uint8_t* bits) noexcept;

// transform_packed() for elements of one byte; `words` is working memory.
void transform_bits(std::uint8_t* bits, unsigned log2, std::vector<std::uint64_t>* words);

}  // namespace gradcomp::polar_code
