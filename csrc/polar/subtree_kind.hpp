// Kinds of the subtrees of a polar code: recursion ends at subcodes that are simple enough to be
// decided at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"

namespace gradcomp {

enum class SubtreeKind : std::uint8_t {
  kFrozen,      // rate 0: every codeword is zero
  kRepetition,  // all elements are equal: only the last input is free
  kParity,      // single parity check: all inputs but the first are free
  kFree,        // rate 1: every word is a codeword
  kSplit,       // none of these
};

// Larger parity nodes are split, which changes the words sent for them. Larger repetition nodes are
// split only so that their sums fit 16 bits.
inline constexpr unsigned kMaxParityLog2 = 6;
inline constexpr unsigned kMaxRepetitionLog2 = 8;

// Fills the binary tree of a code of 2^log2 inputs; inputs with ranks below `count` are free.
// tree[1] is the root, the children of tree[i] are tree[2i] and tree[2i + 1]. `tree` has 2^(log2 +
// 1) elements.
void find_subtree_kinds(const std::uint16_t* ranks, unsigned log2, std::size_t count,
                        SubtreeKind* tree);

}  // namespace gradcomp
