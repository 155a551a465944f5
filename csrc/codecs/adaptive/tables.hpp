// How often each magnitude occurs in a class of contexts: a family of two parameters, so that a
// frame describes a class with one byte, or takes the usual one with none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// Symbols by class, as CodingKernels::classify makes them.
inline constexpr std::size_t kSymbolCounts = kClasses * kClassSymbols;

// What symbols stand for: levels, whose magnitudes have two signs, or indices, which have none.
enum class SymbolKind { kLevels, kIndices };

class AdaptiveTables {
 public:
  // The usual one of every class.
  explicit AdaptiveTables(SymbolKind kind = SymbolKind::kLevels);

  // The tables that code symbols of these counts in the fewest bits, their own description
  // included.
  static AdaptiveTables best(const std::uint64_t* counts, SymbolKind kind = SymbolKind::kLevels);
  // Bits of symbols of these counts, and of the description.
  double bits(const std::uint64_t* counts) const;

  static constexpr std::size_t kMaxBytes = 2 + kClasses;
  std::size_t write(std::uint8_t* out) const;
  // Returns the bytes read, or 0 where there are too few.
  std::size_t read(Span<const std::uint8_t> in);

  void fill(ClassTables* tables) const;
  RansEncodeTable encode_table() const;

  // How often a class has 0: from 0, seldom, to 31.
  unsigned level(std::size_t of_class) const { return shapes_[of_class] % 32u; }
  // What a magnitude costs in a class.
  double bits(std::size_t of_class, unsigned magnitude) const;

 private:
  SymbolKind kind_;
  std::uint8_t shapes_[kClasses];  // level | tail << 5
};

}  // namespace gradcomp
