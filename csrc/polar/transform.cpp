#include "polar/transform.hpp"

#include <cstring>

namespace gradcomp::polar_code {
namespace {

// Elements of a word whose bit `stage` of the index is clear.
constexpr std::uint64_t kLower[6] = {0x5555555555555555u, 0x3333333333333333u, 0x0F0F0F0F0F0F0F0Fu,
                                     0x00FF00FF00FF00FFu, 0x0000FFFF0000FFFFu, 0x00000000FFFFFFFFu};

// The lowest bits of 8 bytes, the first byte's in bit 0: the product moves bit 8i to bit 56 + i.
std::uint64_t gather_byte(const std::uint8_t* bits) noexcept {
  std::uint64_t word = 0;
  for (unsigned i = 0; i < 8; ++i) word |= std::uint64_t{bits[i]} << (8 * i);
  return (word * 0x0102040810204080u) >> 56;
}

}  // namespace

void transform_packed(std::uint64_t* words, unsigned log2) noexcept {
  const std::size_t count = log2 > 6 ? std::size_t{1} << (log2 - 6) : 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = words[i];
    for (unsigned stage = 0; stage < 6 && stage < log2; ++stage) {
      word ^= (word >> (1u << stage)) & kLower[stage];
    }
    words[i] = word;
  }
  for (std::size_t half = 1; half < count; half *= 2) {
    for (std::size_t block = 0; block < count; block += 2 * half) {
      std::uint64_t* const lower = words + block;
      const std::uint64_t* const upper = lower + half;
      for (std::size_t i = 0; i < half; ++i) lower[i] ^= upper[i];
    }
  }
}

void transform_bits(std::uint8_t* bits, unsigned log2, std::vector<std::uint64_t>* words) {
  const std::size_t size = std::size_t{1} << log2;
  words->assign((size + 63) / 64, 0);
  const std::size_t whole = size / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) {
    (*words)[i / 64] |= gather_byte(bits + i) << (i % 64);
  }
  for (std::size_t i = whole; i < size; ++i) (*words)[0] |= std::uint64_t{bits[i]} << i;
  transform_packed(words->data(), log2);
  for (std::size_t i = 0; i < size; ++i) {
    bits[i] = static_cast<std::uint8_t>((*words)[i / 64] >> (i % 64) & 1);
  }
}

}  // namespace gradcomp::polar_code
