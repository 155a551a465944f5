// A stream of symbols: several matrices of small whole numbers in one run of rANS. Each element has
// the frequencies of its class of contexts, and magnitudes of kTopMagnitude and more have their
// excess in an Elias delta code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// Largest excess over kTopMagnitude.
inline constexpr std::uint32_t kMaxExcess = 32766;
inline constexpr double kMaxLevel = kTopMagnitude + kMaxExcess;

// A matrix of numbers with contexts that do not depend on other matrices.
struct SymbolMatrix {
  const float* x;         // before rounding
  std::uint8_t* symbols;  // class * kClassSymbols + symbol, see CodingKernels::classify
  std::size_t rows;
  std::size_t cols;

  std::size_t size() const { return rows * cols; }
};

// Quantizes x and fills the symbols. `columns` is working memory.
void classify(const SymbolMatrix& matrix, const DeadZone& zone, std::vector<std::int16_t>* columns);

// The contexts before the first row of a matrix; the means of its columns are in `columns`.
Contexts first_contexts(std::size_t cols, std::vector<std::int16_t>* columns);

// Bits of all excesses in encode_stream().
std::size_t excess_bits(const SymbolMatrix& matrix, const DeadZone& zone);

std::size_t excess_bits(const std::vector<std::uint32_t>& excesses);

// An element with an excess: its position in the matrix, and its magnitude with its sign.
struct Escape {
  std::size_t at;
  std::int32_t level;
};
void find_escapes(const SymbolMatrix& matrix, const DeadZone& zone, std::vector<Escape>* escapes);

// Appends the excess of each symbol of the top magnitude.
void find_excesses(const SymbolMatrix& matrix, const DeadZone& zone,
                   std::vector<std::uint32_t>* excesses);
// Writes them at *to, which becomes their end; returns false if they do not fit.
bool write_excesses(const std::vector<std::uint32_t>& excesses, std::uint8_t** to,
                    const std::uint8_t* end);

// Writes the words of rANS, from the last symbol to the first. The decoder goes from the first to
// the last.
class SymbolWriter {
 public:
  SymbolWriter(std::uint8_t* out, const std::uint8_t* end, std::size_t lanes);

  // Writes the symbols of a row; symbol j uses state j % lanes. Returns false if they do not fit.
  bool push(const std::uint8_t* symbols, std::size_t n, const RansEncodeTable& table);
  // All rows of a matrix.
  bool push(const SymbolMatrix& matrix, const RansEncodeTable& table);
  // Writes the states. Returns the end of the stream, or nullptr if they do not fit.
  std::uint8_t* finish();

 private:
  std::size_t lanes_;
  std::uint8_t* to_;
  const std::uint8_t* end_;
  std::uint32_t states_[kRansLanes];
};

// With coder=polar, LevelMatrix::levels also holds codes of lattice points (group_form.hpp), from
// here on.
inline constexpr std::int8_t kPointCodes = 16;
// The code of a positive point with an index of kTopMagnitude or more; the next one is that of a
// negative one.
inline constexpr std::int8_t kTopPointCode = 60;

struct LevelMatrix {
  std::int8_t* levels;  // up to kTopMagnitude
  std::size_t rows;
  std::size_t cols;
  std::vector<Escape> escapes = {};

  std::size_t size() const { return rows * cols; }
};

// Reads symbols from a run of rANS. A thread has one at a time, as it uses the thread's scratch.
class SymbolReader {
 public:
  // Returns false if `in` does not end with valid states, or if memory ran out.
  bool open(Span<const std::uint8_t> in, std::size_t lanes);

  // All four return false if the words end too soon.
  // `flags`: see CodingKernels::decode_row.
  bool row(const ClassTables& tables, const std::uint8_t* flags, Contexts& contexts,
           std::int8_t* levels, std::size_t n);
  // `flags`: nullptr, or those of all rows.
  bool matrix(const ClassTables& tables, const std::uint8_t* flags, const LevelMatrix& matrix);
  // Decodes `count` <= kRansLanes flags, flag i with state i % lanes: 0 has the frequency
  // zeros[classes[i]], out of kRansTotal.
  bool flags(const std::uint32_t* zeros, const std::uint8_t* classes, std::size_t count,
             std::uint8_t* out);
  // Decodes a bit with state 0; 1 has the frequency `ones`, out of kRansTotal.
  bool flag(std::uint32_t ones, bool* set);

  // Whether all states are the encoder's initial states.
  bool finished() const;
  // Bytes before the words that were read.
  std::size_t left() const;

 private:
  std::size_t lanes_ = 0;
  const std::uint8_t* begin_ = nullptr;  // of the words, in this thread's scratch
  const std::uint8_t* from_ = nullptr;
  std::uint32_t states_[kRansLanes];
  std::vector<std::int16_t> columns_;
};

// Reads the excesses of all levels and points into LevelMatrix::escapes. Returns false if `in` is
// not exactly their code.
bool read_excesses(Span<const std::uint8_t> in, Span<LevelMatrix> matrices);

}  // namespace gradcomp
