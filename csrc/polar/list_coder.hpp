// Lossy coding as in polar_encode(), with a list of candidates per code: Tal, Vardy: List Decoding
// of Polar Codes, IEEE Trans. Inf. Theory 2015; nodes that are decided at once and the path metric:
// Hashemi, Condo, Gross: Fast and Flexible Successive-Cancellation List Decoders for Polar Codes,
// IEEE Trans. Signal Process. 2017.
//
// Deviation: of free and parity nodes, only the likeliest word is a candidate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polar/subtree_kind.hpp"

namespace gradcomp {

// Working memory of polar_list_encode(), for the rows of the code.
struct ListSpace {
  std::int8_t* llr;     // one row of LLRs per row
  std::int8_t* work;    // the same
  std::uint64_t* bits;  // a word per row
};

// As polar_encode(), with 8 candidates per code: the result agrees better with the LLRs.
void polar_list_encode(const SubtreeKind* tree, unsigned log2, const std::int8_t* llr,
                       const ListSpace& space, std::uint64_t* bits, std::uint8_t* out);

}  // namespace gradcomp
