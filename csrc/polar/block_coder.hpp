// Lossy coding with 64 polar codes at once: a successive-cancellation decoder finds codewords near
// the data, and the polar transform restores them (Korada, Urbanke: Polar Codes are Optimal for
// Lossy Source Coding, IEEE Trans. Inf. Theory 2010).
//
// Deviation from the paper: free inputs are decided by the sign of their log-likelihood ratio, not
// drawn at random by it, and ratios are approximated by minima (Leroux et al.: A Semi-Parallel
// Successive-Cancellation Decoder for Polar Codes, IEEE Trans. Signal Process. 2013).
#pragma once

#include <cstddef>
#include <cstdint>

#include "polar/subtree_kind.hpp"

namespace gradcomp {

// Encodes 2^log2 rows of LLRs in [-127, 127]. Writes one word of 8 bytes per free input to `out`,
// and their decoded codewords to `bits`, one word per row. `work` holds 2^log2 rows. `tree` is from
// find_subtree_kinds().
void polar_encode(const SubtreeKind* tree, unsigned log2, const std::int8_t* llr, std::int8_t* work,
                  std::uint64_t* bits, std::uint8_t* out);

// Writes the words that decode to the codewords `bits` to `out`. Overwrites `bits`.
void polar_words(const SubtreeKind* tree, unsigned log2, std::uint64_t* bits, std::uint8_t* out);

// Decodes the words of `in` to codewords. Every input is valid.
void polar_decode(const SubtreeKind* tree, unsigned log2, const std::uint8_t* in,
                  std::uint64_t* bits);

}  // namespace gradcomp
