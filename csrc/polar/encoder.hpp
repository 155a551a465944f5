// Encoding, which for lossy compression is the decompressor.
#pragma once

#include "base/span.hpp"
#include "polar/construction.hpp"

namespace gradcomp::polar_code {

// An error unless every byte is 0 or 1.
Status check_bits(Span<const std::uint8_t> bits);

// messages: [blocks, K] bits of one byte each. codewords: [blocks, N]. Systematic codewords hold
// the message itself at the information positions.
Status encode(const Code& code, Span<const std::uint8_t> messages, bool systematic,
              Span<std::uint8_t> codewords);

// The bits of a whole array, each row of 2^log2 of them, transformed in place.
Status transform_rows(Span<std::uint8_t> bits, unsigned log2);

}  // namespace gradcomp::polar_code
