#include "codecs/adaptive/zero_groups.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL
#include "coding/contexts_loops.hpp"

// The default frequencies by class, as in FrequencyTables. Fitted to recorded gradients.
constexpr std::uint8_t kDefaultLevel[kClasses] = {31, 31, 29, 25, 21, 15, 13, 10,
                                                  8,  4,  1,  0,  0,  0,  0,  0};

constexpr std::uint64_t kLevelBits = 0x0F0F0F0F0F0F0F0Fu;  // of eight symbols

// Whether any of `count` symbols, at most kGroup, is not 0 of its class.
bool any_level(const std::uint8_t* symbols, std::size_t count) {
  if (count == kGroup) {
    std::uint64_t any = 0;
    for (std::size_t k = 0; k < kGroup; k += 8) any |= load<std::uint64_t>(symbols + k);
    return (any & kLevelBits) != 0;
  }
  return std::any_of(symbols, symbols + count,
                     [](std::uint8_t symbol) { return symbol % kClassSymbols != 0; });
}

// Calls fn(flag, first symbol, symbols) for all groups, row after row.
template <typename Fn>
void for_groups(const SymbolMatrix& band, const Fn& fn) {
  const std::size_t groups = groups_in_row(band.cols);
  for (std::size_t i = 0; i < band.rows; ++i) {
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t at = g * kGroup;
      fn(i * groups + g, i * band.cols + at, std::min(kGroup, band.cols - at));
    }
  }
}

double bits_of(const std::uint64_t (&counts)[2], std::uint32_t zeros) {
  // Rounded, so that the choice of a table does not depend on the C library's log2.
  const auto cost = [](std::uint32_t frequency) {
    return std::round((kRansBits - std::log2(static_cast<double>(frequency))) * 4096) / 4096;
  };
  return static_cast<double>(counts[0]) * cost(zeros) +
         static_cast<double>(counts[1]) * cost(kRansTotal - zeros);
}

}  // namespace

void FlagCounts::add(const FlagCounts& counts) {
  for (std::size_t c = 0; c < kClasses; ++c) {
    of[c][0] += counts.of[c][0];
    of[c][1] += counts.of[c][1];
  }
}

FlagTable::FlagTable() { std::copy(kDefaultLevel, kDefaultLevel + kClasses, levels_); }

FlagTable FlagTable::best(const FlagCounts& counts) {
  FlagTable table;
  for (std::size_t c = 0; c < kClasses; ++c) {
    // A level that is not the default one takes a byte.
    const double most = bits_of(counts.of[c], table.zeros(c)) - 8;
    double least = std::numeric_limits<double>::infinity();
    std::uint8_t found = 0;
    for (std::size_t level = 0; level < kZeroLevels; ++level) {
      const double bits = bits_of(counts.of[c], zero_frequency(level));
      if (bits >= least) continue;
      least = bits;
      found = static_cast<std::uint8_t>(level);
    }
    if (least < most) table.levels_[c] = found;
  }
  return table;
}

double FlagTable::bits(const FlagCounts& counts) const {
  double sum = 16;
  for (std::size_t c = 0; c < kClasses; ++c) {
    sum += bits_of(counts.of[c], zeros(c)) + (levels_[c] == kDefaultLevel[c] ? 0 : 8);
  }
  return sum;
}

std::size_t FlagTable::write(std::uint8_t* out) const {
  return write_classes(levels_, kDefaultLevel, out);
}

std::size_t FlagTable::read(Span<const std::uint8_t> in) {
  const std::size_t size = read_classes(in, levels_);
  const bool valid = std::all_of(levels_, levels_ + kClasses,
                                 [](std::uint8_t level) { return level < kZeroLevels; });
  return valid ? size : 0;
}

std::uint32_t FlagTable::zeros(std::size_t of_class) const {
  return zero_frequency(levels_[of_class]);
}

RansEncodeTable FlagTable::encode_table() const {
  RansEncodeTable table{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    RansSymbol* const symbols = table.of + c * kClassSymbols;
    symbols[0] = rans_symbol(0, zeros(c));
    symbols[1] = rans_symbol(zeros(c), kRansTotal - zeros(c));
  }
  return table;
}

FlagWalk::FlagWalk(std::size_t rows, std::size_t cols)
    : rows_(rows), groups_(groups_in_row(cols)), columns_(groups_, kFirstMean) {}

void FlagWalk::find_classes(std::size_t group) {
  const std::int32_t base = columns_[group] + kMeanFloor;
  for (std::size_t r = 0; r < kFlagRows; ++r) classes_[r] = class_of_sum(base + row_means_[r]);
}

void FlagWalk::note(const std::uint8_t* flags, std::size_t group, bool first) {
  std::int32_t ones = 0;
  for (std::size_t r = 0; r < kFlagRows; ++r) {
    const std::int32_t flag = flags[r];
    ones += flag;
    row_means_[r] += ((flag << kMeanBits) - row_means_[r]) >> kRowShift;
  }
  static_assert(kFlagRows == 32, "a mean is a sum shifted by 5");
  columns_[group] += ((ones << (kMeanBits - 5)) - columns_[group]) >> (first ? 1 : kRowShift);
}

void BandGroups::find(const SymbolMatrix& band) {
  rows_ = band.rows;
  flags_.resize(band.rows * groups_in_row(band.cols));
  coded_ = 0;
  for_groups(band, [&](std::size_t flag, std::size_t at, std::size_t count) {
    const bool any = any_level(band.symbols + at, count);
    flags_[flag] = any ? 1 : 0;
    coded_ += any ? 1 : 0;
  });
}

void BandGroups::pack(const SymbolMatrix& band, std::uint8_t* packed) {
  packed_ = packed;
  runs_.clear();
  std::uint8_t* to = packed;
  for_groups(band, [&](std::size_t flag, std::size_t at, std::size_t count) {
    if (flags_[flag] == 0) return;
    if (count == kGroup) {
      std::memcpy(to, band.symbols + at, kGroup);
    } else {
      std::memcpy(to, band.symbols + at, count);
      runs_.push_back(static_cast<std::size_t>(to - packed) + count);
    }
    to += count;
  });
  packed_size_ = static_cast<std::size_t>(to - packed);
  if (packed_size_ != 0 && (runs_.empty() || runs_.back() != packed_size_)) {
    runs_.push_back(packed_size_);
  }
  flag_symbols_.resize(flags_.size());
  std::uint8_t* symbol = flag_symbols_.data();
  const std::size_t groups = groups_in_row(band.cols);
  FlagWalk(band.rows, band.cols)
      .visit(
          [&](std::size_t at, std::size_t count, const std::uint8_t* classes, std::uint8_t* flags) {
            for (std::size_t r = 0; r < count; ++r) {
              flags[r] = flags_[at + r * groups];
              symbol[r] = static_cast<std::uint8_t>(classes[r] * kClassSymbols + flags[r]);
            }
            symbol += count;
            return true;
          });
  std::uint32_t found[256] = {};
  kernels().coding->count_classified(flag_symbols_.data(), flag_symbols_.size(), found);
  for (std::size_t c = 0; c < kClasses; ++c) {
    for (std::size_t flag = 0; flag < 2; ++flag) {
      counts_.of[c][flag] = found[c * kClassSymbols + flag];
    }
  }
}

bool BandGroups::push(const RansEncodeTable& symbols, const RansEncodeTable& flags,
                      SymbolWriter* writer) const {
  for (std::size_t run = runs_.size(); run-- > 0;) {
    const std::size_t begin = run == 0 ? 0 : runs_[run - 1];
    if (!writer->push(packed_ + begin, runs_[run] - begin, symbols)) return false;
  }
  // The rows that are left after whole blocks of kFlagRows have fewer flags in a column.
  const std::size_t whole = rows_ / kFlagRows * kFlagRows * (flag_symbols_.size() / rows_);
  const std::size_t left = rows_ % kFlagRows;
  for (std::size_t end = flag_symbols_.size(); end > whole; end -= left) {
    if (!writer->push(flag_symbols_.data() + end - left, left, flags)) return false;
  }
  return writer->push(flag_symbols_.data(), whole, flags);
}

bool read_flags(const FlagTable& table, std::size_t rows, std::size_t cols, SymbolReader* reader,
                std::vector<std::uint8_t>* flags) {
  std::uint32_t zeros[kClasses];
  for (std::size_t c = 0; c < kClasses; ++c) zeros[c] = table.zeros(c);
  const std::size_t groups = groups_in_row(cols);
  flags->resize(rows * groups);
  return FlagWalk(rows, cols)
      .visit(
          [&](std::size_t at, std::size_t count, const std::uint8_t* classes, std::uint8_t* read) {
            if (!reader->flags(zeros, classes, count, read)) return false;
            for (std::size_t r = 0; r < count; ++r) (*flags)[at + r * groups] = read[r];
            return true;
          });
}

}  // namespace gradcomp
