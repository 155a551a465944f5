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

// Frequencies of the symbols, with the sum kRansTotal; 0 for symbols that do not occur.
struct Frequencies {
  std::size_t count = 0;  // symbols from here on do not occur
  std::uint32_t of[256] = {};
};

// Encoder data for an interval of frequency f > 0 from `start` on.
RansSymbol rans_symbol(std::uint32_t start, std::uint32_t f);

// Occurrences of each symbol.
void count_symbols(Span<const std::uint8_t> symbols, std::uint32_t* counts);
// Frequencies with the given sum that code symbols of these counts in the fewest bits. A frequency
// is above 0 exactly if the count is.
void scale_counts(const std::uint32_t* counts, std::uint32_t total, Frequencies* frequencies);

// Upper bound of the size in bytes of frequencies of symbols below 2^bits.
inline constexpr std::size_t kMaxRansTable = 1 + 256 * 21 / 8;
std::size_t write_frequencies(const Frequencies& frequencies, unsigned bits, std::uint8_t* out);
// Returns the number of bytes read, or 0 if they are not valid frequencies.
std::size_t read_frequencies(Span<const std::uint8_t> in, unsigned bits, Frequencies* frequencies);

// Codes at least one symbol into at most `capacity` bytes at `out`. Returns the size, or 0 if the
// code does not fit.
std::size_t rans_encode(Span<const std::uint8_t> symbols, const Frequencies& frequencies,
                        std::uint8_t* out, std::size_t capacity);
// Decodes symbols.size() symbols. False unless `in` is exactly their code.
bool rans_decode(Span<const std::uint8_t> in, const Frequencies& frequencies,
                 Span<std::uint8_t> symbols);

// The same with frequencies counted here and written before the code; 1 to 64Ki symbols below
// 2^bits.
std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out,
                        std::size_t capacity);
std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits,
                        const std::uint32_t* counts, std::uint8_t* out, std::size_t capacity);
bool rans_decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols);

}  // namespace gradcomp
