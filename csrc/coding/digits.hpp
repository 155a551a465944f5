// Lossless coding of numbers that are mostly small and do not depend on each other: 1, 2 or 4 of
// them make one byte. Bytes are rANS symbols; their frequencies are products of the frequencies of
// the numbers. So few symbols are coded, and few frequencies are sent. docs/wire-format.md#digits
// is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"

namespace gradcomp {

inline constexpr std::size_t kDigitsHeader = 4;

inline std::size_t digits_max_bytes(std::size_t count) { return kDigitsHeader + count; }
// Number of bytes for `count` numbers of `width` bits.
inline std::size_t digit_symbols(std::size_t count, unsigned width) {
  const std::size_t each = 8 / width;
  return (count + each - 1) / each;
}

// Codes 1 to 2^20 numbers; returns the size in bytes. `work` has one byte per number.
std::size_t digits_encode(Span<const std::uint8_t> numbers, std::uint8_t* work, std::uint8_t* out);

struct DigitsChunk {
  unsigned width;  // 2, 4 or 8
  Span<const std::uint8_t> body;
};

// Reads the header of a chunk of `count` numbers at the beginning of `in`. False if it is invalid.
bool read_digits_header(Span<const std::uint8_t> in, std::size_t count, DigitsChunk* chunk);
// Decodes the digit_symbols() bytes of a chunk. False if it is damaged.
bool digits_decode(const DigitsChunk& chunk, Span<std::uint8_t> symbols);
// Unpacks the first `count` numbers of those bytes.
void unpack_digits(const std::uint8_t* symbols, unsigned width, std::uint8_t* numbers,
                   std::size_t count);

}  // namespace gradcomp
