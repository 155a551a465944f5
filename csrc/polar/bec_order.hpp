// Order of the inputs of the polar transform by reliability on a binary erasure channel (Arikan
// 2009, section I-C). docs/wire-format.md#polar-codes is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradcomp {

// Ranks of the 2^log2 inputs of a code, 0 for the most reliable one; log2 <= 16. The elements of
// the codeword are erased with probability `erasure` / 2^31, at most 1, and those from `length` on
// with certainty. Integers throughout, so that every machine finds the same order.
std::vector<std::uint16_t> bec_ranks(unsigned log2, std::uint32_t erasure, std::size_t length);

}  // namespace gradcomp
