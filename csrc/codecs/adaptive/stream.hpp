// Several matrices of small whole numbers in one run of rANS, each element with the table of its
// class of contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "codecs/adaptive/tables.hpp"
#include "kernels/coding.hpp"

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

// The contexts before the first row of so many columns, whose means are in `columns`.
Contexts first_contexts(std::size_t cols, std::vector<std::int16_t>* columns);

// What encode_stream() takes for the excess of those symbols that stand for larger magnitudes.
std::size_t excess_bits(const SymbolMatrix& matrix, const DeadZone& zone);

std::size_t excess_bits(const std::vector<std::uint32_t>& excesses);

// Adds those excesses.
void find_excesses(const SymbolMatrix& matrix, const DeadZone& zone,
                   std::vector<std::uint32_t>* excesses);
// False where they do not fit between *to and end.
bool write_excesses(const std::vector<std::uint32_t>& excesses, std::uint8_t** to,
                    const std::uint8_t* end);

// Words of rANS, of symbols from the last one to the first; a decoder goes the other way.
class SymbolWriter {
 public:
  SymbolWriter(std::uint8_t* out, const std::uint8_t* end, std::size_t lanes);

  // A row's symbols, of which number j has state j % lanes. False where they do not fit.
  bool push(const std::uint8_t* symbols, std::size_t n, const RansEncodeTable& table);
  // All rows of a matrix.
  bool push(const SymbolMatrix& matrix, const RansEncodeTable& table);
  // The end of all, or nullptr where they do not fit.
  std::uint8_t* finish();

 private:
  std::size_t lanes_;
  std::uint8_t* to_;
  const std::uint8_t* end_;
  std::uint32_t states_[kRansLanes];
};

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

// In `levels`, indices of points of another lattice are distinct from levels: from here on.
inline constexpr std::int8_t kPointCodes = 16;
// Such an index of kTopMagnitude or more, with its sign.
inline constexpr std::int8_t kTopPointCode = 60;

struct LevelMatrix {
  std::int8_t* levels;  // up to kTopMagnitude
  std::size_t rows;
  std::size_t cols;
  std::vector<Escape> escapes = {};

  std::size_t size() const { return rows * cols; }
};

// Takes the symbols back from a run of rANS.
class SymbolReader {
 public:
  // False where `in` does not end with valid states.
  bool open(Span<const std::uint8_t> in, std::size_t lanes);

  // False where there are not enough words.
  bool row(const ClassTables& tables, Contexts& contexts, std::int8_t* levels, std::size_t n);
  bool matrix(const ClassTables& tables, const LevelMatrix& matrix);
  // A symbol with state 0: 1 with so many of kRansTotal parts, else 0.
  bool flag(std::uint32_t ones, bool* set);

  // Whether all states are back where the encoder began.
  bool finished() const;
  // The bytes before the words that were taken.
  std::size_t left() const;

 private:
  std::size_t lanes_ = 0;
  std::vector<std::uint8_t> padded_;
  const std::uint8_t* from_ = nullptr;
  std::uint32_t states_[kRansLanes];
  std::vector<std::int16_t> columns_;
};

// The excesses of all levels and points that have any; false where `in` is not exactly those.
bool read_excesses(Span<const std::uint8_t> in, Span<LevelMatrix> matrices);

// Whether `in` is exactly the code of such matrices.
bool decode_stream(Span<const std::uint8_t> in, const ClassTables& tables, std::size_t lanes,
                   Span<LevelMatrix> matrices);

}  // namespace gradcomp
