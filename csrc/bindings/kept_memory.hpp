// Memory of arrays that are no longer referenced, reused for the next arrays of their size.
#pragma once

#include <cstddef>

#include "bindings/common.hpp"

namespace gradcomp::bindings {

// An array with undefined content. A step needs the same sizes as the previous one. If large memory
// were returned to the system, the system would clear it again for each step, which takes longer
// than many codecs.
Bytes room(std::size_t nbytes);

}  // namespace gradcomp::bindings
