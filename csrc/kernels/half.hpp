// Conversions of single elements for each half format. Vector code uses them for its tails.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

// Least magnitude bits that round to binary16 beyond the finite range (65520).
inline constexpr std::uint32_t kHalfOverflow = 0x477FF000u;
inline constexpr std::uint16_t kHalfMax = 0x7BFFu;  // 65504

inline std::uint16_t half_from_float(float x, bool saturate) noexcept {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & kMagnitudeMask;
  std::uint32_t half;
  if (magnitude > kInfBits) {
    half = 0x7E00u | (magnitude >> 13 & 0x3FFu);
  } else if (magnitude >= kHalfOverflow) {
    half = saturate && magnitude < kInfBits ? kHalfMax : 0x7C00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24, which is the spacing of floats near 0.5.
    half = float_bits(bits_float(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    half = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

inline float float_from_half(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1Fu;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {
    return bits_float(float_bits(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  }
  if (exponent == 31) {
    return bits_float(sign | kInfBits | (mantissa != 0 ? 0x400000u | mantissa << 13 : 0u));
  }
  return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline std::uint16_t bfloat_from_float(float x) noexcept {
  const std::uint32_t bits = float_bits(x);
  if ((bits & kMagnitudeMask) > kInfBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float float_from_bfloat(std::uint16_t bfloat) noexcept {
  return bits_float(static_cast<std::uint32_t>(bfloat) << 16);
}

}  // namespace gradcomp
