// Capabilities of codecs: the fields are the rows of GRADCOMP_EACH_CAP, which describes each.
#pragma once

#include <cstdint>

#include "gradcomp/gradcomp.h"

namespace gradcomp {

// The type of a payload's elements, for engines that sum payloads.
enum class PayloadType : std::uint8_t { kBytes = 0, kFloat16 = 1, kFloat32 = 2 };

struct Caps {
  // All false but `finite`: most codecs keep finite values finite.
#define GRADCOMP_CAP_FIELD(name, NAME, bit) bool name = GRADCOMP_CAP_##NAME == GRADCOMP_CAP_FINITE;
  GRADCOMP_EACH_CAP(GRADCOMP_CAP_FIELD)
#undef GRADCOMP_CAP_FIELD
  PayloadType payload_type = PayloadType::kBytes;  // of a summable codec
};

// Calls fn(name, bit) for each capability that is set.
template <typename Fn>
void for_each_cap(const Caps& caps, const Fn& fn) {
#define GRADCOMP_CAP_CALL(name, NAME, bit) \
  if (caps.name) fn(#name, GRADCOMP_CAP_##NAME);
  GRADCOMP_EACH_CAP(GRADCOMP_CAP_CALL)
#undef GRADCOMP_CAP_CALL
}

}  // namespace gradcomp
