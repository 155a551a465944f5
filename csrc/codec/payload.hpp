// Checks of buffer sizes, for codecs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

inline Status check_room(Span<std::uint8_t> out, std::size_t needed) {
  if (out.size() >= needed) return {};
  return capacity_error("the output buffer has " + std::to_string(out.size()) +
                        " bytes; this payload needs " + std::to_string(needed));
}

inline Status check_payload_size(Span<const std::uint8_t> in, std::size_t expected,
                                 std::size_t numel) {
  if (in.size() == expected) return {};
  return wire_error("the payload has " + std::to_string(in.size()) + " bytes; for " +
                    std::to_string(numel) + " elements it must have " + std::to_string(expected));
}

}  // namespace gradcomp
