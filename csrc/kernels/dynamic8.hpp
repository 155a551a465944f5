// The dynamic 8-bit data type (Dettmers: "8-Bit Approximations for Parallelism in Deep Learning",
// ICLR 2016; the signed map of bitsandbytes): 256 values in [-1, 1], dense in relative terms over
// seven decades.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace gradcomp {

// The level of a magnitude (see Dynamic8) as a function that vectors can compute: the integer part
// of the least of the lines but the last, or of the last one if that is greater.
//
// In decade i the borders are at equal distances, so level is linear in x; the slopes decrease from
// one decade to the next, and the least of their lines is the one that counts. Only the first
// border of a decade is out of step, as the middle between values of two decades: a steeper line
// goes through it and the border after it, and is the least of all between them. The last line, the
// greater one near 1, does that for the last border.
//
// The lines are in units of 2^-16 of a level. Rounding moves them by less than kNear, so an element
// that is not as near to a border is sure to have the right level.
struct Dynamic8Lines {
  static constexpr int kTop = 13;
  static constexpr int kLines = kTop + 1;
  // From this line on they tell the levels above kLeastLarge, of x above about 0.001.
  static constexpr int kFirstLarge = 7;
  static constexpr float kLeastLarge = 16.0f * 65536;
  static constexpr float kSmallest = 0x1p-80f;  // below, the slopes may be infinite
  static constexpr int kNear = 8;
  static constexpr int kFar = 0xFFFF & ~(2 * kNear - 1);  // bits that are 0 near a border

  float slopes[kLines];
  float intercepts[kLines];
};

struct Dynamic8 {
  // Code 127 is 0, codes 128 to 254 are positive, their mirror images are codes 126 to 0, and code
  // 255 is 1. Ascending.
  float values[256];

  // Encoding searches the magnitude: level m is |values[127 + m]|. A level is the number of borders
  // below a number's key, which is its bits rotated left by one: the magnitude, then the sign. The
  // lowest bit of a border tells whether the middle between two levels is a float32 (0) or lies
  // above one (1), so that one comparison sends ties to the lower code, whatever the sign.
  std::uint32_t borders[129];  // the last but one is below the value 1, the last one is never met
  // The level of the smallest key of each cell of keys; a cell holds at most one border.
  static constexpr unsigned kCellShift = 18;  // exponent and 6 bits of the significand
  static constexpr std::uint32_t kFirstCell = 6719;
  static constexpr std::uint32_t kCells = 8129 - kFirstCell;
  std::uint8_t first_levels[kCells];

  double slopes[Dynamic8Lines::kLines];
  double intercepts[Dynamic8Lines::kLines];
  // For magnitudes up to `largest`, which stands for 1.
  Dynamic8Lines lines(float largest) const noexcept;
};

const Dynamic8& dynamic8() noexcept;

inline std::uint32_t dynamic8_key(float x) noexcept {
  const std::uint32_t bits = float_bits(x);
  return bits << 1 | bits >> 31;
}

// The code of the value nearest to x, |x| <= 1.
inline std::uint8_t dynamic8_code(const Dynamic8& map, float x) noexcept {
  const std::uint32_t key = dynamic8_key(x);
  const std::uint32_t cell = key >> Dynamic8::kCellShift;
  std::uint32_t level =
      map.first_levels[cell < Dynamic8::kFirstCell ? 0 : cell - Dynamic8::kFirstCell];
  level += key > map.borders[level] ? 1 : 0;
  if ((key & 1) == 0) return static_cast<std::uint8_t>(127 + level);
  return static_cast<std::uint8_t>(level < 127 ? 127 - level : 0);  // -1 is no value
}

}  // namespace gradcomp
