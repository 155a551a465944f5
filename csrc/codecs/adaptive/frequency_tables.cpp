#include "codecs/adaptive/frequency_tables.hpp"

#include <algorithm>
#include <cmath>

#include "base/bytes.hpp"
#include "coding/rans.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kTails = 8;

// Frequency of 0, out of 2^14, by level: odds from 2^-3 to 2^10.2, equally spaced on a logarithmic
// scale.
constexpr std::uint16_t kZeros[kZeroLevels] = {
    1820,  2356,  3016,  3810,  4740,  5792,  6938,  8138,  9338,  10492, 11554,
    12494, 13302, 13974, 14520, 14954, 15296, 15560, 15762, 15916, 16034, 16122,
    16188, 16238, 16274, 16302, 16324, 16338, 16350, 16358, 16366, 16370};
// Frequency of magnitude m among those of m and more, out of 2^8, by tail.
constexpr std::uint8_t kStops[kTails] = {236, 212, 189, 166, 143, 120, 97, 74};

constexpr std::size_t kKinds = 2;

// Default shapes, fitted to recorded gradients.
constexpr std::uint8_t kDefaultLevel[kKinds][kClasses] = {
    {31, 29, 24, 20, 18, 16, 15, 14, 13, 11, 10, 8, 6, 4, 3, 2},
    {31, 29, 26, 24, 22, 19, 16, 14, 12, 11, 9, 7, 6, 4, 2, 1}};
constexpr std::uint8_t kDefaultTail[kKinds][kClasses] = {
    {1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7},
    {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 5, 6, 7, 7, 7}};

constexpr std::size_t index_of(SymbolKind kind) { return static_cast<std::size_t>(kind); }
constexpr std::uint32_t signs_of(SymbolKind kind) { return kind == SymbolKind::kLevels ? 2 : 1; }

constexpr std::uint8_t shape(std::size_t level, std::size_t tail) {
  return static_cast<std::uint8_t>(level | tail << 5);
}

// The frequency of each magnitude; above 0, that of each sign.
struct ShapeFrequencies {
  std::uint32_t of[kTopMagnitude + 1];

  ShapeFrequencies(std::uint8_t shape, SymbolKind kind) {
    of[0] = kZeros[shape % kZeroLevels];
    std::uint32_t left = (kRansTotal - of[0]) / signs_of(kind);
    for (unsigned m = 1; m < kTopMagnitude; ++m) {
      const std::uint32_t part = left * kStops[shape / kZeroLevels] >> 8;
      of[m] = std::min(std::max(part, 1u), left - (kTopMagnitude - m));
      left -= of[m];
    }
    of[kTopMagnitude] = left;
  }
};

// Bits of each symbol, by shape.
struct Costs {
  float of[kZeroLevels * kTails][kTopMagnitude + 1];

  explicit Costs(SymbolKind kind) {
    for (std::size_t i = 0; i < kZeroLevels * kTails; ++i) {
      const ShapeFrequencies frequencies(static_cast<std::uint8_t>(i), kind);
      for (unsigned m = 0; m <= kTopMagnitude; ++m) {
        // Rounded, so that the choice of a table does not depend on the C library's log2.
        const double bits = 14 - std::log2(static_cast<double>(frequencies.of[m]));
        of[i][m] = static_cast<float>(std::round(bits * 4096) / 4096);
      }
    }
  }
};

const Costs& costs(SymbolKind kind) {
  static const Costs of[kKinds] = {Costs(SymbolKind::kLevels), Costs(SymbolKind::kIndices)};
  return of[index_of(kind)];
}

using Magnitudes = double[kTopMagnitude + 1];

// Adds up both signs of a class; returns whether it has any symbol.
bool count_magnitudes(const std::uint64_t* counts, Magnitudes& magnitudes) {
  std::uint64_t all = counts[0];
  magnitudes[0] = static_cast<double>(counts[0]);
  for (unsigned m = 1; m <= kTopMagnitude; ++m) {
    const std::uint64_t both = counts[2 * m - 1] + counts[2 * m];
    magnitudes[m] = static_cast<double>(both);
    all += both;
  }
  return all != 0;
}

double bits_of(const Magnitudes& magnitudes, std::uint8_t shape, SymbolKind kind) {
  const float* const each = costs(kind).of[shape];
  double sum = 0;
  for (unsigned m = 0; m <= kTopMagnitude; ++m) sum += magnitudes[m] * static_cast<double>(each[m]);
  return sum;
}

std::uint8_t default_shape(std::size_t of, SymbolKind kind) {
  return shape(kDefaultLevel[index_of(kind)][of], kDefaultTail[index_of(kind)][of]);
}

}  // namespace

std::uint32_t zero_frequency(std::size_t level) { return kZeros[level]; }

std::size_t write_classes(const std::uint8_t* of, const std::uint8_t* usual, std::uint8_t* out) {
  std::uint16_t described = 0;
  std::uint8_t* to = out + 2;
  for (std::size_t c = 0; c < kClasses; ++c) {
    if (of[c] == usual[c]) continue;
    described = static_cast<std::uint16_t>(described | 1u << c);
    *to++ = of[c];
  }
  store(out, described);
  return static_cast<std::size_t>(to - out);
}

std::size_t read_classes(Span<const std::uint8_t> in, std::uint8_t* of) {
  if (in.size() < 2) return 0;
  const auto described = load<std::uint16_t>(in.data());
  const auto size = 2 + static_cast<std::size_t>(__builtin_popcount(described));
  if (in.size() < size) return 0;
  const std::uint8_t* from = in.data() + 2;
  for (std::size_t c = 0; c < kClasses; ++c) {
    if ((described >> c & 1) != 0) of[c] = *from++;
  }
  return size;
}

FrequencyTables::FrequencyTables(SymbolKind kind) : kind_(kind) {
  for (std::size_t c = 0; c < kClasses; ++c) shapes_[c] = default_shape(c, kind);
}

FrequencyTables FrequencyTables::best(const std::uint64_t* counts, SymbolKind kind) {
  FrequencyTables tables(kind);
  for (std::size_t c = 0; c < kClasses; ++c) {
    Magnitudes magnitudes;
    if (!count_magnitudes(counts + c * kClassSymbols, magnitudes)) continue;
    std::uint8_t found = default_shape(c, kind);
    double least = bits_of(magnitudes, found, kind);
    const double before = least - 8;
    const auto consider = [&](std::uint8_t shape) {
      const double bits = bits_of(magnitudes, shape, kind);
      if (bits < least) {
        least = bits;
        found = shape;
      }
    };
    const std::size_t default_tail = found / kZeroLevels;
    for (std::size_t level = 0; level < kZeroLevels; ++level) consider(shape(level, default_tail));
    const std::size_t level = found % kZeroLevels;
    for (std::size_t tail = 0; tail < kTails; ++tail) consider(shape(level, tail));
    if (least < before) tables.shapes_[c] = found;
  }
  return tables;
}

double FrequencyTables::bits(const std::uint64_t* counts) const {
  double sum = 16;
  for (std::size_t c = 0; c < kClasses; ++c) {
    Magnitudes magnitudes;
    count_magnitudes(counts + c * kClassSymbols, magnitudes);
    sum += bits_of(magnitudes, shapes_[c], kind_) + (shapes_[c] == default_shape(c, kind_) ? 0 : 8);
  }
  return sum;
}

double FrequencyTables::bits(std::size_t of_class, unsigned magnitude) const {
  return static_cast<double>(costs(kind_).of[shapes_[of_class]][magnitude]);
}

std::size_t FrequencyTables::write(std::uint8_t* out) const {
  const FrequencyTables usual(kind_);
  return write_classes(shapes_, usual.shapes_, out);
}

std::size_t FrequencyTables::read(Span<const std::uint8_t> in) { return read_classes(in, shapes_); }

void FrequencyTables::fill(ClassTables* tables) const {
  for (std::size_t c = 0; c < kClasses; ++c) {
    const ShapeFrequencies frequencies(shapes_[c], kind_);
    std::uint32_t start = 0;
    for (unsigned m = 0; m <= kTopMagnitude; ++m) {
      tables->of[m][c] = start << 16 | frequencies.of[m];
      start += (m == 0 ? 1 : signs_of(kind_)) * frequencies.of[m];
    }
  }
}

RansEncodeTable FrequencyTables::encode_table() const {
  RansEncodeTable table{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    const ShapeFrequencies frequencies(shapes_[c], kind_);
    RansSymbol* const symbols = table.of + c * kClassSymbols;
    symbols[0] = rans_symbol(0, frequencies.of[0]);
    std::uint32_t start = frequencies.of[0];
    for (unsigned m = 1; m <= kTopMagnitude; ++m) {
      for (unsigned negative = 0; negative < signs_of(kind_); ++negative) {
        symbols[2 * m - 1 + negative] = rans_symbol(start, frequencies.of[m]);
        start += frequencies.of[m];
      }
    }
  }
  return table;
}

}  // namespace gradcomp
