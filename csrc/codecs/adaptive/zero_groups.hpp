// Groups of a band's elements without a level above 0, which have no symbols: a flag for each group
// tells which ones have. Flags are cheap to code and to read, and of most gradients they leave a
// small part of the symbols.
// docs/wire-format.md#adaptive is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "codecs/adaptive/symbol_stream.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// Rows with flags that do not affect the classes of each other in the same column of groups.
inline constexpr std::size_t kFlagRows = 32;

// Number of flags by class, of groups without and with symbols.
struct FlagCounts {
  std::uint64_t of[kClasses][2] = {};

  void add(const FlagCounts& counts);
};

// The frequencies of both flags in each class of contexts.
class FlagTable {
 public:
  // All classes have their default frequencies.
  FlagTable();
  // The table that codes these flags in the fewest bits, its own included.
  static FlagTable best(const FlagCounts& counts);
  // Bits of the flags, and of the table.
  double bits(const FlagCounts& counts) const;

  // Returns the bytes written.
  std::size_t write(std::uint8_t* out) const;
  // Returns the bytes read, or 0 if `in` is too short or a frequency is not one of the list.
  std::size_t read(Span<const std::uint8_t> in);

  // Of the flag 0, out of kRansTotal.
  std::uint32_t zeros(std::size_t of_class) const;
  // Symbols are those of FlagWalk.
  RansEncodeTable encode_table() const;

 private:
  std::uint8_t levels_[kClasses];
};

// The order of a band's flags, and their contexts: encoder and decoder walk through them alike.
class FlagWalk {
 public:
  FlagWalk(std::size_t rows, std::size_t cols);

  // Calls fn(at, rows, classes, flags) for the flags of up to kFlagRows rows in a column of groups,
  // in the order in which they are coded: it sets as many flags, of which the first one belongs to
  // group `at` of the band, counted row after row, and returns whether to go on. Returns whether
  // all were visited.
  template <typename Fn>
  bool visit(const Fn& fn);

 private:
  // Of all kFlagRows rows, as a fixed number is computed in vectors.
  void find_classes(std::size_t group);
  void note(const std::uint8_t* flags, std::size_t group, bool first);

  std::size_t rows_;
  std::size_t groups_;
  std::vector<std::int32_t> columns_;  // means of flags
  std::int32_t row_means_[kFlagRows];
  std::uint8_t classes_[kFlagRows];
};

template <typename Fn>
bool FlagWalk::visit(const Fn& fn) {
  std::uint8_t flags[kFlagRows] = {};
  for (std::size_t row = 0; row < rows_; row += kFlagRows) {
    const std::size_t count = rows_ - row < kFlagRows ? rows_ - row : kFlagRows;
    for (std::int32_t& mean : row_means_) mean = kFirstMean;
    for (std::size_t group = 0; group < groups_; ++group) {
      find_classes(group);
      if (!fn(row * groups_ + group, count, classes_, flags)) return false;
      if (count < kFlagRows) std::fill(flags + count, flags + kFlagRows, std::uint8_t{0});
      note(flags, group, row == 0);
    }
  }
  return true;
}

// The encoder's side, for one band.
class BandGroups {
 public:
  // Finds the groups with symbols.
  void find(const SymbolMatrix& band);
  // Of all groups of the band, and of those with symbols.
  std::size_t groups() const { return flags_.size(); }
  std::size_t coded() const { return coded_; }

  // After find(): copies the symbols of these groups one after the other into `packed`, which has
  // room for all, and finds the classes of the flags.
  void pack(const SymbolMatrix& band, std::uint8_t* packed);
  Span<const std::uint8_t> packed() const { return {packed_, packed_size_}; }
  const FlagCounts& counts() const { return counts_; }

  // Writes the symbols, and then what is decoded before them, the flags. Returns false if they do
  // not fit.
  bool push(const RansEncodeTable& symbols, const RansEncodeTable& flags,
            SymbolWriter* writer) const;

 private:
  std::size_t rows_ = 0;
  std::vector<std::uint8_t> flags_;  // row after row
  std::size_t coded_ = 0;
  const std::uint8_t* packed_ = nullptr;
  std::size_t packed_size_ = 0;
  std::vector<std::size_t> runs_;  // the ends of runs in `packed` that can be coded at once
  std::vector<std::uint8_t> flag_symbols_;  // class * kClassSymbols + flag, in the order of coding
  FlagCounts counts_;
};

// The bands of a tensor.
struct ZeroGroups {
  std::uint8_t* packed = nullptr;  // room for all symbols; nullptr: all groups have symbols
  std::vector<BandGroups> bands = {};
};

// The decoder's side: reads the flags of a matrix, a byte for each group, row after row. Returns
// false if the words end too soon.
bool read_flags(const FlagTable& table, std::size_t rows, std::size_t cols, SymbolReader* reader,
                std::vector<std::uint8_t>* flags);

}  // namespace gradcomp
