// Capabilities of codecs. GRADCOMP_EACH_CAP describes those that users see.
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
  // Codec::encode honours Call::feedback (codec/feedback.hpp): it corrects every element before it
  // first reads it, and subtracts the decoded payload. Such an encode fails before it has touched
  // any element, or not at all.
  bool fuses_feedback = false;
  // Decoding takes much longer than copying, so that a rank had better keep what its own payload
  // decodes to (Feedback::keep_decoded).
  bool decodes_slowly = false;
};

// Calls fn(name, bit) for each capability of GRADCOMP_EACH_CAP that is set.
template <typename Fn>
void for_each_cap(const Caps& caps, const Fn& fn) {
#define GRADCOMP_CAP_CALL(name, NAME, bit) \
  if (caps.name) fn(#name, GRADCOMP_CAP_##NAME);
  GRADCOMP_EACH_CAP(GRADCOMP_CAP_CALL)
#undef GRADCOMP_CAP_CALL
}

}  // namespace gradcomp
