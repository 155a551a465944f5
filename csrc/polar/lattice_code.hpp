// Polar codes that select one half of the points of the half-integer lattice (polar/lattice.hpp).
#pragma once

#include <cstddef>
#include <vector>

#include "polar/subtree_kind.hpp"

namespace gradcomp {

// Number of words of codes of `rows` rows: of 64 inputs, 29 are free.
inline std::size_t lattice_words(std::size_t rows) { return 29 * rows / 64; }

// Tree of a code of 2^log2 rows, of which the first `rows` are used; log2 <= 16.
std::vector<SubtreeKind> lattice_tree(unsigned log2, std::size_t rows);

}  // namespace gradcomp
