// CRC-32C (Castagnoli): the polynomial of iSCSI (RFC 3720, B.4), reflected, initial value and final
// XOR of all ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace gradcomp {

inline std::uint32_t crc32c(const std::uint8_t* data, std::size_t size) noexcept {
  return ~kernels().crc32c(~std::uint32_t{0}, data, size);
}

}  // namespace gradcomp
