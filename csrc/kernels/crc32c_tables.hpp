// Tables for CRC-32C, made once at first use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78u;  // reflected
// Bytes per lane when the CPU's CRC instruction runs three lanes at a time.
inline constexpr std::size_t kCrcLaneBytes = 4096;

struct Crc32cTables {
  std::uint32_t slice[8][256];  // slice[j][b]: byte b followed by j zero bytes
  std::uint32_t shift[4]
                     [256];  // shift[j][b]: byte j of a CRC value, after kCrcLaneBytes zero bytes

  Crc32cTables() noexcept {
    for (std::uint32_t b = 0; b < 256; ++b) {
      std::uint32_t crc = b;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1u ? kCrc32cPolynomial : 0u);
      slice[0][b] = crc;
    }
    for (int j = 1; j < 8; ++j) {
      for (std::uint32_t b = 0; b < 256; ++b) {
        const std::uint32_t crc = slice[j - 1][b];
        slice[j][b] = crc >> 8 ^ slice[0][crc & 0xFF];
      }
    }
    // Appending zeros is linear, so it is enough to shift the 32 single bits.
    std::uint32_t unit[32];
    for (int bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = 1u << bit;
      for (std::size_t i = 0; i < kCrcLaneBytes; ++i) crc = crc >> 8 ^ slice[0][crc & 0xFF];
      unit[bit] = crc;
    }
    for (int j = 0; j < 4; ++j) {
      for (std::uint32_t b = 0; b < 256; ++b) {
        shift[j][b] = 0;
        for (int bit = 0; bit < 8; ++bit) {
          if (b >> bit & 1u) shift[j][b] ^= unit[8 * j + bit];
        }
      }
    }
  }

  std::uint32_t shift_lane(std::uint32_t crc) const noexcept {
    return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^
           shift[3][crc >> 24];
  }
};

inline const Crc32cTables& crc32c_tables() noexcept {
  static const Crc32cTables tables;
  return tables;
}

}  // namespace gradcomp
