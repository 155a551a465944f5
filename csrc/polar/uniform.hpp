#pragma once

#include <cstdint>

namespace gradcomp::polar_code {

// Maps a 64-bit draw to a number of 53 bits in (0, 1].
inline double unit_interval(std::uint64_t draw) noexcept {
  return static_cast<double>((draw >> 11) + 1) * 0x1p-53;
}

}  // namespace gradcomp::polar_code
