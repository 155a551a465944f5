// Class of a matrix element, from the magnitudes above it in its column and before it in its row,
// in steps of the quantizer. Encoder and decoder use the same arithmetic: integers and one exact
// conversion to float32. docs/wire-format.md#adaptive is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace gradcomp {

// Elements of a group. Members of one group do not affect the classes of each other.
inline constexpr std::size_t kGroup = 32;
inline std::size_t groups_in_row(std::size_t cols) { return (cols + kGroup - 1) / kGroup; }

inline constexpr std::size_t kClasses = 16;
// Symbols of a class: 0; magnitude m as 2 m - 1 or, negative, 2 m. The top magnitude also stands
// for all larger ones; their excess is coded separately.
inline constexpr unsigned kTopMagnitude = 7;
inline constexpr std::size_t kClassSymbols = 16;
inline constexpr std::size_t kLowClasses = 8;
// Bits that 0 of a low class does not have.
inline constexpr std::uint8_t kOtherBits = 0x8F;

// State before an element is coded: means of magnitudes, with 12 fractional bits.
struct Contexts {
  std::int16_t*
      columns;  // over the rows above, the latest with the greatest weight; whole groups of columns
  std::int32_t row;  // over the groups before, the latest with the greatest weight
  unsigned shift;    // weight 2^-shift of a new magnitude in its column's mean
};

inline constexpr unsigned kMeanBits = 12;
inline constexpr std::int32_t kFirstMean = 410;  // 0.1
inline constexpr std::int32_t kMeanFloor = 164;  // 0.04
inline constexpr unsigned kMaxColumnShift = 5;
inline constexpr unsigned kRowShift = 2;
// Half octaves of the sum of both means below class 0.
inline constexpr std::int32_t kFirstClass = 14;

// Contexts::shift of a row, counted from 0.
inline unsigned column_shift(std::size_t row) {
  return row >= 15 ? kMaxColumnShift : 32u - static_cast<unsigned>(__builtin_clz(row + 1));
}

// Rule of the encoder: magnitude x * inverse + bias, rounded down, at least 1; but 0 if x * inverse
// is below the class's threshold.
struct DeadZone {
  float inverse;
  float bias;
  float threshold[kClasses];
};

// Interval of each magnitude, by class: its start times 2^16, plus its frequency. Both signs of a
// magnitude above 0 have that frequency; the positive one comes first.
struct ClassTables {
  alignas(64) std::uint32_t of[kTopMagnitude + 1][kClasses];
};

}  // namespace gradcomp
