// Checks and reorders the LLRs of a caller.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "base/span.hpp"
#include "base/status.hpp"
#include "polar/boxplus.hpp"
#include "polar/construction.hpp"

namespace gradcomp::polar_code {

inline Status check_llrs(Span<const double> llrs) {
  for (std::size_t i = 0; i < llrs.size(); ++i) {
    if (std::isnan(llrs[i])) {
      return argument_error(
          "LLR " + std::to_string(i) +
          " is NaN; it must be a number, 0 for an unknown bit, Inf for a known 0");
    }
  }
  return {};
}

inline double clamp_llr(double llr) noexcept { return std::clamp(llr, -kCertain, kCertain); }

// Writes one block's LLRs [N] in decision order of the mother code; shortened positions are
// certain.
inline void load_channel(const Code& code, const double* llrs, double* channel) noexcept {
  std::fill(channel, channel + code.mother(), kCertain);
  for (std::size_t i = 0; i < code.length; ++i) {
    channel[reverse_bits(code.kept[i], code.log2)] = clamp_llr(llrs[i]);
  }
}

}  // namespace gradcomp::polar_code
