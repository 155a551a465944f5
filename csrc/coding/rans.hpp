// Range asymmetric numeral systems (Duda: "Asymmetric numeral systems: entropy coding combining
// speed of Huffman coding with compression rate of arithmetic coding", 2013), static frequencies,
// interleaved states (Giesen: "Interleaved entropy coders", 2014).
// docs/wire-format.md#level-coding is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// How often each symbol occurs, of kRansTotal; 0 for symbols that do not.
struct Frequencies {
  std::size_t count = 0;  // symbols from here on do not occur
  std::uint32_t of[256] = {};
};

// What encoding needs to know of an interval of f > 0 from `start` on.
RansSymbol rans_symbol(std::uint32_t start, std::uint32_t f);

// Occurrences of each symbol.
void count_symbols(Span<const std::uint8_t> symbols, std::uint32_t* counts);
// The frequencies that code symbols of these counts, with the given sum, in the fewest bits; above
// 0 exactly where the count is.
void scale_counts(const std::uint32_t* counts, std::uint32_t total, Frequencies* frequencies);

// Frequencies of symbols below 2^bits as bytes: at most so many.
inline constexpr std::size_t kMaxRansTable = 1 + 256 * 21 / 8;
std::size_t write_frequencies(const Frequencies& frequencies, unsigned bits, std::uint8_t* out);
// Returns the number of bytes read, or 0 when they are no frequencies.
std::size_t read_frequencies(Span<const std::uint8_t> in, unsigned bits, Frequencies* frequencies);

// Codes at least one symbol into at most `capacity` bytes at `out`; returns the size, or 0 when
// they do not fit.
std::size_t rans_encode(Span<const std::uint8_t> symbols, const Frequencies& frequencies,
                        std::uint8_t* out, std::size_t capacity);
// Whether `in` is exactly the code of symbols.size() symbols.
bool rans_decode(Span<const std::uint8_t> in, const Frequencies& frequencies,
                 Span<std::uint8_t> symbols);

// The same with frequencies that are counted, and written before the code; 1 to 64Ki symbols below
// 2^bits.
std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out,
                        std::size_t capacity);
bool rans_decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols);

}  // namespace gradcomp
