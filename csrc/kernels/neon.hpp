#pragma once

#include "kernels/kernels.hpp"

namespace gradcomp {

// The level of 64-bit ARM processors.
const Kernels& neon_kernels() noexcept;

}  // namespace gradcomp
