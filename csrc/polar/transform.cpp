#include "polar/transform.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace gradcomp::polar_code {
namespace {

// Masks of the elements of a word with bit `stage` of the index clear.
constexpr std::uint64_t kLower[6] = {0x5555555555555555u, 0x3333333333333333u, 0x0F0F0F0F0F0F0F0Fu,
                                     0x00FF00FF00FF00FFu, 0x0000FFFF0000FFFFu, 0x00000000FFFFFFFFu};

// Collects the lowest bits of 8 bytes, the first byte's in bit 0: the product moves bit 8i to bit
// 56 + i.
std::uint64_t gather_byte(const std::uint8_t* bits) noexcept {
  return (load<std::uint64_t>(bits) * 0x0102040810204080u) >> 56;
}

// The inverse: byte i keeps bit i of its copy of `byte`, and the sum makes that its highest bit.
void scatter_byte(std::uint64_t byte, std::uint8_t* bits) noexcept {
  const std::uint64_t kept = (byte * 0x0101010101010101u) & 0x8040201008040201u;
  store(bits, ((kept + 0x7F7F7F7F7F7F7F7Fu) >> 7) & 0x0101010101010101u);
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

void pack_bits(const std::uint8_t* bits, std::size_t size, std::uint64_t* words) noexcept {
  std::fill(words, words + (size + 63) / 64, std::uint64_t{0});
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) words[i / 64] |= gather_byte(bits + i) << (i % 64);
  for (; i < size; ++i) words[i / 64] |= std::uint64_t{bits[i]} << (i % 64);
}

void unpack_bits(const std::uint64_t* words, std::size_t size, std::uint8_t* bits) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) scatter_byte(words[i / 64] >> (i % 64) & 0xFF, bits + i);
  for (; i < size; ++i) bits[i] = static_cast<std::uint8_t>(words[i / 64] >> (i % 64) & 1);
}

void transform_bits(std::uint8_t* bits, unsigned log2, std::vector<std::uint64_t>* words) {
  const std::size_t size = std::size_t{1} << log2;
  words->resize((size + 63) / 64);
  pack_bits(bits, size, words->data());
  transform_packed(words->data(), log2);
  unpack_bits(words->data(), size, bits);
}

}  // namespace gradcomp::polar_code
