// The dynamic 8-bit data type (Dettmers: "8-Bit Approximations for Parallelism in Deep Learning",
// ICLR 2016; the signed map of bitsandbytes): 256 values in [-1, 1], dense in relative terms over
// seven decades.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace gradcomp {

// Level of a magnitude (see Dynamic8) as a function for vectors: the integer part of the least of
// all lines but the last, or of the last line if that is greater.
//
// In decade i the borders are at equal distances, so the level is linear in x. Slopes decrease from
// one decade to the next, so the least line applies. Only the first border of a decade is
// irregular: it is the middle between values of two decades. A steeper line goes through it and the
// next border, and is the least line between them. The last line, greater than the others near 1,
// does the same for the last border.
//
// The lines are in units of 2^-16 of a level. Rounding moves them by less than kNear, so the level
// is right for every element farther than that from a border.
struct Dynamic8Lines {
  static constexpr int kTop = 13;
  static constexpr int kLines = kTop + 1;
  // First line for levels above kLeastLarge, of x above about 0.001.
  static constexpr int kFirstLarge = 7;
  static constexpr float kLeastLarge = 16.0f * 65536;
  static constexpr float kSmallest = 0x1p-80f;  // below, the slopes may be infinite
  static constexpr std::uint32_t kNear = 8;
  static constexpr std::uint32_t kFar = 0xFFFF & ~(2 * kNear - 1);  // bits that are 0 near a border

  float slopes[kLines];
  float intercepts[kLines];
};

struct Dynamic8 {
  // Ascending. Code 127 is 0, codes 128 to 254 are positive, codes 126 to 0 mirror them, and code
  // 255 is 1.
  float values[256];

  // Encoding searches the magnitude: level m is |values[127 + m]|. A number's key is its bits
  // rotated left by one: the magnitude, then the sign. Its level is the number of borders below the
  // key. The lowest bit of a border is 0 if the middle between two levels is a float32, 1 if it
  // lies above one. So a single comparison sends ties to the lower code, whatever the sign.
  std::uint32_t
      borders[129];  // the last but one is below the value 1, the last one is never reached
  // Level of the smallest key of each cell of keys; a cell holds at most one border.
  static constexpr unsigned kCellShift = 18;  // exponent and 6 bits of the significand
  static constexpr std::uint32_t kFirstCell = 6719;
  static constexpr std::uint32_t kCells = 8129 - kFirstCell;
  std::uint8_t first_levels[kCells];

  double slopes[Dynamic8Lines::kLines];
  double intercepts[Dynamic8Lines::kLines];
  // For magnitudes up to `largest`, which maps to 1.
  Dynamic8Lines lines(float largest) const noexcept;
};

const Dynamic8& dynamic8() noexcept;

inline std::uint32_t dynamic8_key(float x) noexcept {
  const std::uint32_t bits = float_bits(x);
  return bits << 1 | bits >> 31;
}

// Code of the value nearest to x, |x| <= 1.
inline std::uint8_t dynamic8_code(const Dynamic8& map, float x) noexcept {
  const std::uint32_t key = dynamic8_key(x);
  const std::uint32_t cell = key >> Dynamic8::kCellShift;
  std::uint32_t level =
      map.first_levels[cell < Dynamic8::kFirstCell ? 0 : cell - Dynamic8::kFirstCell];
  level += key > map.borders[level] ? 1 : 0;
  if ((key & 1) == 0) return static_cast<std::uint8_t>(127 + level);
  return static_cast<std::uint8_t>(level < 127 ? 127 - level : 0);  // the value -1 does not exist
}

}  // namespace gradcomp
