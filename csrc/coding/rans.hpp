// Range asymmetric numeral systems (Duda: "Asymmetric numeral systems: entropy coding combining
// speed of Huffman coding with compression rate of arithmetic coding", 2013), static frequencies,
// four interleaved states (Giesen: "Interleaved entropy coders", 2014). What a body of coding 1
// holds in docs/wire-format.md#level-coding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/span.hpp"

namespace gradcomp {

// Codes 1 to 64Ki symbols below 2^bits into at most `room` bytes at `out`; returns the size, or 0
// when they do not fit.
std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out,
                        std::size_t room);

// Whether `in` is exactly the code of symbols.size() symbols below 2^bits.
bool rans_decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols);

}  // namespace gradcomp
