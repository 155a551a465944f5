#pragma once

namespace gradcomp {

// Outermost level of 1 to 8 bits, in standard deviations, with the least squared error for normal
// values, which are rounded to nearest or stochastically.
float clip_of_normal(unsigned bits, bool stochastic) noexcept;

}  // namespace gradcomp
