// coder=polar of `adaptive`: the fields that tell which groups of elements are lattice points, and
// the values of these points.
//
// A group (kGroup elements of a row) consists either of levels or of points of the half-integer
// lattice (polar/lattice.hpp). Codewords of polar codes (codewords.hpp) give the half of the
// lattice that each point belongs to. Its number within that half, the index, is coded like levels,
// by classes of contexts.
//
// Entropy coding of cosets: Fischer, Wang: Entropy-Constrained Trellis-Coded Quantization, IEEE
// Trans. Inf. Theory 1992; here with the codes of Korada, Urbanke: Polar Codes are Optimal for
// Lossy Source Coding, IEEE Trans. Inf. Theory 2010, instead of a trellis.
// docs/wire-format.md#adaptive is the specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "codecs/adaptive/symbol_stream.hpp"

namespace gradcomp {

// Distance of two points, in steps of the levels: levels and points then trade the same error for a
// bit.
inline constexpr float kSpacing = 0.78125f;
inline constexpr double kSquaredSpacing =
    static_cast<double>(kSpacing) * static_cast<double>(kSpacing);

// Bytes of the number of points, with which a band's stream begins.
inline constexpr std::size_t kPointCountBytes = 4;

struct GroupForm {
  // First class with groups that are usually coded as points, plus 4; kNoPoints: all groups are
  // levels.
  std::uint8_t start = kNoPoints;
  // Offsets of the reconstruction points, in 64ths of the points' distance: of index 0, and of all
  // others.
  std::int8_t first = 0;
  std::int8_t other = 0;
  FrequencyTables indices{SymbolKind::kIndices};

  static constexpr std::uint8_t kNoPoints = 24;

  // Returns the bytes written.
  std::size_t write(std::uint8_t* out) const;
  // Returns the bytes read, or 0 if `in` is too short or `start` too large.
  std::size_t read(Span<const std::uint8_t> in);

  // Frequency, out of kRansTotal, of points among groups of this class.
  std::uint32_t points_of(unsigned group_class) const;
  // Mean that a point of index 0 stands for, in 64ths of the points' distance, before `first` is
  // added.
  static int centre(unsigned level);
  // Sets values[code] for all codes of points (LevelMatrix::levels, as a byte), where levels have
  // this step.
  void fill_values(float step, float* values) const;
  // The value of a point with an index above 0, negative if `index` is.
  float value(float step, std::int32_t index) const;
};

// Codes of points in LevelMatrix::levels: index 0 by class and sign, all others by index and sign.
inline std::int8_t first_point_code(unsigned of_class, bool negative) {
  return static_cast<std::int8_t>(kPointCodes + 2 * static_cast<int>(of_class) +
                                  (negative ? 1 : 0));
}
inline std::int8_t other_point_code(int index, bool negative) {
  return static_cast<std::int8_t>(kPointCodes + 2 * static_cast<int>(kClasses) + 2 * (index - 1) +
                                  (negative ? 1 : 0));
}
static_assert(kPointCodes + 2 * kClasses + 2 * (kTopMagnitude - 1) == kTopPointCode,
              "the code of the largest index");

}  // namespace gradcomp
