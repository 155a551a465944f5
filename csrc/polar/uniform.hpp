#pragma once

#include <cstdint>

namespace gradcomp::polar_code {

// A 64-bit draw made a number in (0, 1], of 53 bits.
inline double unit_interval(std::uint64_t draw) noexcept {
  return static_cast<double>((draw >> 11) + 1) * 0x1p-53;
}

}  // namespace gradcomp::polar_code
