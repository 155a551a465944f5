// Encoder of polar codes. For lossy compression, it is the decompressor.
#pragma once

#include "base/span.hpp"
#include "polar/construction.hpp"

namespace gradcomp::polar_code {

// Fails unless every byte is 0 or 1.
Status check_bits(Span<const std::uint8_t> bits);

// messages: [blocks, K] bits of one byte each. codewords: [blocks, N]. Systematic codewords hold
// the message itself at the information positions.
Status encode(const Code& code, Span<const std::uint8_t> messages, bool systematic,
              Span<std::uint8_t> codewords);

// Transforms the bits of an array in place, row by row of 2^log2 bits.
Status transform_rows(Span<std::uint8_t> bits, unsigned log2);

}  // namespace gradcomp::polar_code
