// Lossless coding of quantization levels. docs/wire-format.md#level-coding is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// Coding that a spec's coder stage requests.
enum class LevelCoding : std::uint8_t {
  kPacked,      // fixed width
  kRans,        // asymmetric numeral systems, a table of frequencies per chunk
  kEliasDelta,  // universal code of symbol + 1: small symbols must be the frequent ones
};

// Codes symbols below 2^bits, 1 <= bits <= 8. Signed levels are mapped to symbols by the codec
// (zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...).
//
// Every kChunk symbols are coded separately, so a codec may code chunk by chunk: codes of runs of
// whole chunks, joined, are the code of the joined runs.
class LevelCoder {
 public:
  // "packed", "rans" or "elias_delta".
  static LevelCoder named(std::string_view name);

  LevelCoding coding() const { return coding_; }
  // True if the code is the symbols themselves, one byte each.
  bool plain(unsigned bits) const { return coding_ == LevelCoding::kPacked && bits == 8; }
  // True if the code always has max_bytes(count, bits) bytes.
  bool fixed_size() const { return coding_ == LevelCoding::kPacked; }

  std::size_t max_bytes(std::size_t count, unsigned bits) const;
  // Returns the number of bytes written. Touches no byte beyond max_bytes(symbols.size(), bits).
  std::size_t encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out) const;
  // Whether decode() takes n symbols; for codes of fixed_size().
  Status check_fixed(Span<const std::uint8_t> in, unsigned bits, std::size_t n) const;
  // Reads symbols.size() symbols. Fails unless each is below 2^bits and they fill `in` exactly.
  Status decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols) const;

 private:
  explicit LevelCoder(LevelCoding coding) : coding_(coding) {}

  LevelCoding coding_;
};

// Fewest bits that hold the symbols 0, ..., largest; 1 <= largest.
inline unsigned symbol_bits(unsigned largest) {
  return 32u - static_cast<unsigned>(__builtin_clz(largest));
}

}  // namespace gradcomp
