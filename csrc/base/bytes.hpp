// Little-endian loads and stores at any alignment. The wire is little-endian; so are the targets.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gradcomp supports little-endian targets only"
#endif

namespace gradcomp {

template <typename T>
inline T load(const std::uint8_t* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
inline void store(std::uint8_t* p, T value) noexcept {
  std::memcpy(p, &value, sizeof(T));
}

inline std::uint32_t float_bits(float x) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float bits_float(std::uint32_t bits) noexcept {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace gradcomp
