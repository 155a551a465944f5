// Fields of adaptive's payload that come before its streams: how they are written and read.
// docs/wire-format.md#adaptive is the specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "base/status.hpp"
#include "codecs/adaptive/low_rank.hpp"
#include "codecs/adaptive/matrix_shape.hpp"
#include "codecs/adaptive/zero_groups.hpp"

namespace gradcomp {

// Tensors with fewer elements travel as float32.
inline constexpr std::size_t kMinAdaptive = 64;

// The byte of a payload that has only one: the value of all elements.
inline constexpr std::uint8_t kAllZero = 0;
inline constexpr std::uint8_t kAllNan = 1;

// Bytes of the head, of the fields of a turned matrix, and of the factors' steps and shifts.
inline constexpr std::size_t kHeadBytes = 10;
inline constexpr std::size_t kTurnedBytes = 5;
inline std::size_t factor_fields(std::size_t rank) { return rank == 0 ? 0 : 2 + 3 * rank; }

// Reconstruction points of the quantizer: the value that each level decodes to.
struct LevelValues {
  float step = 0;
  int first = 0;  // magnitude 1 decodes to 1 + first / 32 steps, first in [-8, 7]
  int other = 0;  // magnitude m > 1 decodes to m + other / 32 steps, other in [-8, 7]

  float value(std::int32_t level) const;
};

struct PayloadHead {
  std::size_t lanes = 1;  // rANS states: a power of 2, at most 32
  std::size_t rank = 0;   // of the low-rank part; 0 for a turned matrix, see TurnedFields
  bool turned = false;    // whether the matrix is in a learned basis
  // Whether zero groups have no symbols: then ZeroGroupFields tells the lanes.
  bool zero_groups = false;
  std::size_t cols = 0;
  LevelValues values;

  // Writes kHeadBytes.
  void write(std::uint8_t* out) const;
  // Of a tensor with n elements. `basis`: whether the spec has preset=basis, so that the matrix may
  // be turned. `points`: whether it has coder=polar, which has no zero groups.
  static Status read(Span<const std::uint8_t> in, std::size_t n, bool basis, bool points,
                     PayloadHead* head);
};

// Fields of zero groups, between the tables and those of a turned matrix.
struct ZeroGroupFields {
  std::size_t lanes = 1;
  FlagTable flags;

  // Returns the bytes written.
  std::size_t write(std::uint8_t* out) const;
  // Sets the number of bytes read, or fails.
  Status read(Span<const std::uint8_t> in, std::size_t* bytes);
};

// Fields of a turned matrix, between its tables and its factors.
struct TurnedFields {
  std::size_t rank = 0;
  std::uint32_t basis = 0;  // LearnedBasis::check

  // Writes kTurnedBytes.
  void write(std::uint8_t* out) const;
  // Reads kTurnedBytes, or fails.
  static Status read(Span<const std::uint8_t> in, TurnedFields* fields);
};

// The factors' steps, shifts and low bits; their high numbers are in the first stream. rank > 0.
// Returns the end.
std::uint8_t* write_factors(const LowRank& low_rank, std::uint8_t* out);
// Sets rank, size, step, shift and low of both factors, and the number of bytes read.
Status read_factors(Span<const std::uint8_t> in, const MatrixShape& shape, std::size_t rank,
                    LowRank* low_rank, std::size_t* bytes);

}  // namespace gradcomp
