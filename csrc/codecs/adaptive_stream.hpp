// Several matrices of small whole numbers in one run of rANS, each element with the table of its
// class of contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/adaptive_tables.hpp"
#include "coding/kernels.hpp"
#include "core/span.hpp"

namespace gradcomp {

// Beyond kTopMagnitude at most so much.
inline constexpr std::uint32_t kMaxExcess = 32766;
inline constexpr double kMaxLevel = kTopMagnitude + kMaxExcess;

// Rows of numbers that have contexts of their own.
struct SymbolMatrix {
  const float* x;         // multiples of the step, about
  std::uint8_t* symbols;  // as CodingKernels::classify makes them
  std::size_t rows;
  std::size_t cols;

  std::size_t size() const { return rows * cols; }
};

// Fills the symbols. `columns` is working memory.
void classify(const SymbolMatrix& matrix, const DeadZone& zone, std::vector<std::int16_t>* columns);

// What encode_stream() takes for the excess of those symbols that stand for larger magnitudes.
std::size_t excess_bits(const SymbolMatrix& matrix, const DeadZone& zone);

// Codes all symbols and, where they stand for larger magnitudes, the excess of those; returns the
// bytes, or 0 when they do not fit `room`.
std::size_t encode_stream(Span<const SymbolMatrix> matrices, const DeadZone* zones,
                          const RansEncodeTable& table, std::size_t lanes, std::uint8_t* out,
                          std::size_t room);

// A magnitude above kTopMagnitude, or equal to it, with its sign.
struct Escape {
  std::size_t at;
  std::int32_t level;
};

struct LevelMatrix {
  std::int8_t* levels;  // up to kTopMagnitude
  std::size_t rows;
  std::size_t cols;
  std::vector<Escape> escapes = {};

  std::size_t size() const { return rows * cols; }
};

// Whether `in` is exactly the code of such matrices.
bool decode_stream(Span<const std::uint8_t> in, const ClassTables& tables, std::size_t lanes,
                   Span<LevelMatrix> matrices);

}  // namespace gradcomp
