// What codecs of one bit per element share: the bits follow a head of float32 scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codec/payload.hpp"

namespace gradcomp {

inline std::size_t bit_bytes(std::size_t n) noexcept { return (n + 7) / 8; }

// `in` is a head and n bits; those that fill the last byte must be 0.
inline Status check_bits(Span<const std::uint8_t> in, std::size_t head, std::size_t n) {
  GRADCOMP_TRY(check_payload_size(in, head + bit_bytes(n), n));
  if (n % 8 != 0 && in[in.size() - 1] >> n % 8 != 0) {
    return wire_error("the bits beyond the last of " + std::to_string(n) + " elements are not 0");
  }
  return {};
}

}  // namespace gradcomp
