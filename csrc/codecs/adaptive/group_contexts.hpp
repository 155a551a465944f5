// Contexts of groups that may consist of points: how encoder and decoder classify a group and
// update its means.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contexts.hpp"

namespace gradcomp {

// The class of a group of `count` columns, starting at `at`.
unsigned group_class(const Contexts& contexts, std::size_t at, std::size_t count);

// The classes of the kGroup columns from `at` on.
void find_element_classes(const Contexts& contexts, std::size_t at, std::uint8_t* classes);

// Updates the means with the indices of a group of points, which are at most kTopMagnitude.
// CodingKernels do the same for levels.
void add_points(Contexts& contexts, std::size_t at, std::size_t count, const std::uint8_t* indices);

}  // namespace gradcomp
