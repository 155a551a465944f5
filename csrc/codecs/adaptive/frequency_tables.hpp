// Frequencies of the magnitudes in each class of contexts, for rANS.
//
// They are from a family with two parameters, the shape. A payload therefore describes a class with
// one byte, or with none if the class has its default shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// Number of symbols of all classes, as CodingKernels::classify makes them.
inline constexpr std::size_t kSymbols = kClasses * kClassSymbols;

// The frequency of 0, out of kRansTotal, of each level of a shape.
inline constexpr std::size_t kZeroLevels = 32;
std::uint32_t zero_frequency(std::size_t level);

// Writes a bit for each class and, for those that are set, what is not usual: a byte of a class.
// Returns the bytes written.
std::size_t write_classes(const std::uint8_t* of, const std::uint8_t* usual, std::uint8_t* out);
// Replaces what is not usual. Returns the bytes read, or 0 if `in` is too short.
std::size_t read_classes(Span<const std::uint8_t> in, std::uint8_t* of);

// Levels are signed numbers; indices are not negative.
enum class SymbolKind { kLevels, kIndices };

class FrequencyTables {
 public:
  // All classes have their default shapes.
  explicit FrequencyTables(SymbolKind kind = SymbolKind::kLevels);

  // The tables that code symbols with these counts (kSymbols of them) in the fewest bits, the
  // tables' own included.
  static FrequencyTables best(const std::uint64_t* counts, SymbolKind kind = SymbolKind::kLevels);
  // Bits of symbols with these counts, and of the tables.
  double bits(const std::uint64_t* counts) const;

  // Returns the bytes written.
  std::size_t write(std::uint8_t* out) const;
  // Returns the bytes read, or 0 if `in` is too short.
  std::size_t read(Span<const std::uint8_t> in);

  void fill(ClassTables* tables) const;
  RansEncodeTable encode_table() const;

  // The first parameter of a class's shape: the frequency of 0, from 0 (rare) to 31.
  unsigned level(std::size_t of_class) const { return shapes_[of_class] % 32u; }
  // Bits of a magnitude in a class.
  double bits(std::size_t of_class, unsigned magnitude) const;

 private:
  SymbolKind kind_;
  std::uint8_t shapes_[kClasses];  // level | tail << 5
};

}  // namespace gradcomp
