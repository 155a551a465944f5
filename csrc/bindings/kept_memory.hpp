// Memory of arrays that nothing refers to any more, for the next arrays of their size.
#pragma once

#include <cstddef>

#include "bindings/common.hpp"

namespace gradcomp::bindings {

// An array of any content. A step needs the same sizes as the one before, and a system that is
// given large memory back clears it anew for each step, which takes longer than many a codec.
Bytes room(std::size_t nbytes);

}  // namespace gradcomp::bindings
