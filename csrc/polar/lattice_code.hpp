// The polar codes that say, of elements at the half-integer lattice (polar/lattice.hpp), which half
// of its points is meant.
#pragma once

#include <cstddef>
#include <vector>

#include "polar/subtree_kind.hpp"

namespace gradcomp {

// Words of codes of so many rows: of 64 inputs 29 are free.
inline std::size_t lattice_words(std::size_t rows) { return 29 * rows / 64; }

// The tree of a code of 2^log2 rows, of which the first `rows` are used; log2 <= 16.
std::vector<SubtreeKind> lattice_tree(unsigned log2, std::size_t rows);

}  // namespace gradcomp
