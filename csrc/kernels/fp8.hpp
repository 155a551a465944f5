// The 8-bit floating-point formats of Micikevicius et al.: "FP8 Formats for Deep Learning",
// arXiv 2209.05433. A code is a sign bit, an exponent, and 3 (e4m3) or 2 (e5m2) bits of
// significand.
#pragma once

#include <cstdint>

namespace gradcomp {

struct Fp8Format {
  std::uint32_t shift;       // between the lowest bits of a code and of a float32's magnitude
  std::uint32_t bias;        // bits of the float32 that code 0 would be, were it a normal number
  std::uint32_t least_bits;  // bits of the least normal number, 2^-6 or 2^-14
  std::uint32_t least_code;  // its code; smaller codes are multiples of `quantum`
  std::uint32_t last_code;   // code of `limit`; codes above it mean NaN, in e5m2 also Inf
  float limit;               // largest finite number
  float quantum;             // smallest number above 0
  float to_lowest_bit;       // adding it rounds to a multiple of `quantum`, left in the lowest bits
  float to_fixed;            // 2^24 / quantum
};

inline constexpr Fp8Format kE4m3 = {20,     120u << 23, 121u << 23, 8,      0x7E,
                                    448.0f, 0x1p-9f,    0x1p14f,    0x1p33f};
inline constexpr Fp8Format kE5m2 = {21,       112u << 23, 113u << 23, 4,      0x7B,
                                    57344.0f, 0x1p-16f,   0x1p7f,     0x1p40f};

}  // namespace gradcomp
