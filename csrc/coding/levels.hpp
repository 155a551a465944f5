// Lossless coding of quantization levels. docs/wire-format.md#level-coding is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// What a spec's coder stage asks for.
enum class LevelCoding : std::uint8_t {
  kPacked,      // fixed width
  kRans,        // asymmetric numeral systems, a table of frequencies per chunk
  kEliasDelta,  // universal code of symbol + 1: small symbols must be the frequent ones
};

// Codes symbols below 2^bits, 1 <= bits <= 8. Signed levels are mapped to symbols by the codec
// (zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...).
//
// Every kChunk symbols are coded on their own: the code of a run of whole chunks, followed by the
// code of what comes after, is the code of both together. So a codec may code chunk by chunk.
class LevelCoder {
 public:
  // "packed", "rans" or "elias_delta".
  static LevelCoder named(std::string_view name);

  LevelCoding coding() const { return coding_; }
  // Whether coded symbols are the symbols themselves, one byte each.
  bool plain(unsigned bits) const { return coding_ == LevelCoding::kPacked && bits == 8; }
  // Whether the code always has max_bytes(count, bits).
  bool fixed_size() const { return coding_ == LevelCoding::kPacked; }

  std::size_t max_bytes(std::size_t count, unsigned bits) const;
  // Writes at most max_bytes(symbols.size(), bits) bytes; returns how many. Touches no byte beyond
  // those max_bytes.
  std::size_t encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out) const;
  // Reads exactly symbols.size() symbols, each below 2^bits, which fill `in` exactly, or fails.
  Status decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols) const;

 private:
  explicit LevelCoder(LevelCoding coding) : coding_(coding) {}

  LevelCoding coding_;
};

// The fewest bits that hold the symbols 0, ..., largest; 1 <= largest <= 255.
inline unsigned symbol_bits(unsigned largest) {
  return 32u - static_cast<unsigned>(__builtin_clz(largest));
}

}  // namespace gradcomp
