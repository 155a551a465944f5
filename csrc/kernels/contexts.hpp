// Which class an element of a matrix belongs to: how large those of its column above it, and those
// of its row before it, have been, in steps of the quantizer. Encoder and decoder follow the same
// arithmetic, of integers and of one exact conversion to float32.
// docs/wire-format.md#adaptive is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace gradcomp {

// So many elements of a row are seen at once: those of a group know nothing of one another.
inline constexpr std::size_t kGroup = 32;

inline constexpr std::size_t kClasses = 16;
// Symbols of a class: 0; magnitude m as 2 m - 1 or, negative, 2 m. The top magnitude also stands
// for all larger ones, whose excess is coded elsewhere.
inline constexpr unsigned kTopMagnitude = 7;
inline constexpr std::size_t kClassSymbols = 16;

// What is known before an element is coded: means of magnitudes, with 12 fractional bits.
struct Contexts {
  std::int16_t* columns;  // of the rows above, the last ones most; whole groups of columns
  std::int32_t row;       // of the groups before, the last ones most
  unsigned shift;         // a new magnitude enters its column's mean with the weight 2^-shift
};

inline constexpr unsigned kMeanBits = 12;
inline constexpr std::int32_t kFirstMean = 410;  // 0.1
inline constexpr std::int32_t kMeanFloor = 164;  // 0.04
inline constexpr unsigned kMaxColumnShift = 5;
inline constexpr unsigned kRowShift = 2;
// Half octaves of both means' sum below those of class 0.
inline constexpr std::int32_t kFirstClass = 14;

// Contexts::shift in a row, counted from 0.
inline unsigned column_shift(std::size_t row) {
  return row >= 15 ? kMaxColumnShift : 32u - static_cast<unsigned>(__builtin_clz(row + 1));
}

// How the encoder quantizes: magnitude x * inverse + bias, rounded down, at least 1; but 0 where
// x * inverse is below its class's threshold.
struct DeadZone {
  float inverse;
  float bias;
  float threshold[kClasses];
};

// The interval of each magnitude, by class: where it starts, times 2^16, plus its frequency; both
// signs of a magnitude above 0 have that frequency, the positive one first.
struct ClassTables {
  alignas(64) std::uint32_t of[kTopMagnitude + 1][kClasses];
};

}  // namespace gradcomp
