#include "codecs/adaptive/lattice_groups.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codecs/adaptive/codewords.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"
#include "polar/elementary.hpp"
#include "polar/lattice.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL
#include "coding/contexts_loops.hpp"

// The distance of points, in steps of the levels: so that both trade as much error for a bit.
constexpr float kSpacing = 0.78125f;
constexpr double kSquaredSpacing = static_cast<double>(kSpacing) * static_cast<double>(kSpacing);

// What contexts take note of for a point, by its index, at most kTopMagnitude: so that levels and
// points of the same elements have about the same means, with kMeanBits fractional bits.
constexpr int note_of(int index) { return index == 0 ? 200 : 800 + 3200 * index; }

// Of 2^14 groups those of points, by how far their class is from the start, -4 to 4 and beyond.
constexpr std::uint32_t kPointsOf[9] = {40, 200, 900, 3300, 8192, 13084, 15484, 16184, 16344};
constexpr int kFarthest = 4;

// By the level of a class's table: what index 0 stands for, in 64ths of the points' distance.
// Normal elements have this mean, on the side of their codeword's bit.
constexpr std::uint8_t kCentres[32] = {34, 34, 34, 34, 34, 34, 34, 34, 34, 34, 33,
                                       32, 31, 30, 28, 27, 26, 25, 24, 23, 22, 22,
                                       21, 21, 20, 20, 20, 20, 20, 19, 19, 19};
constexpr float kPart = 0x1p-6f;

// Fewer elements than this are not worth codewords.
constexpr std::size_t kMinPoints = 64;

constexpr std::size_t kCountBytes = 4;  // of a band's number of points

// LevelMatrix::levels of points: index 0 by class and sign, the others by index and sign.
std::int8_t first_point_code(unsigned of_class, bool negative) {
  return static_cast<std::int8_t>(kPointCodes + 2 * static_cast<int>(of_class) +
                                  (negative ? 1 : 0));
}
std::int8_t other_point_code(int index, bool negative) {
  return static_cast<std::int8_t>(kPointCodes + 2 * static_cast<int>(kClasses) + 2 * (index - 1) +
                                  (negative ? 1 : 0));
}
static_assert(kPointCodes + 2 * kClasses + 2 * (kTopMagnitude - 1) == kTopPointCode, "the last");

// The class of a group of `count` columns from `at` on.
unsigned group_class(const Contexts& contexts, std::size_t at, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) sum += contexts.columns[at + k];
  std::int16_t mean[kGroup] = {};
  mean[0] = static_cast<std::int16_t>(sum / static_cast<std::int32_t>(count));
  std::uint8_t classes[kGroup];
  find_classes({mean, contexts.row, contexts.shift}, 0, classes);
  return classes[0];
}

// As take_note(), of a group of points' indices, which are at most kTopMagnitude.
void take_note_of_points(Contexts& contexts, std::size_t at, std::size_t count,
                         const std::uint8_t* indices) {
  std::int16_t* const means = contexts.columns + at;
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const int note = note_of(indices[k]);
    sum += note;
    means[k] = static_cast<std::int16_t>(means[k] + ((note - means[k]) >> contexts.shift));
  }
  contexts.row += (sum / static_cast<std::int32_t>(count) - contexts.row) >> kRowShift;
}

// How the encoder chooses points, for each class: by its table, at kBitWorth for a bit.
struct Rules {
  LatticeRule of[kClasses];
  // What an element costs as a point, in squares of the step, by its sixteenths of the points'
  // distance; from the last on about the same.
  static constexpr int kCosts = 128;
  float cost[kClasses][kCosts];

  explicit Rules(const AdaptiveTables& indices) {
    for (unsigned c = 0; c < kClasses; ++c) {
      const double centre = static_cast<double>(kCentres[indices.level(c)]) / 64;
      double price[kTopMagnitude + 1];  // in squares of the points' distance
      for (unsigned k = 0; k <= kTopMagnitude; ++k) {
        price[k] = kBitWorth / kSquaredSpacing * indices.bits(c, k);
      }
      const auto cost = [&](double magnitude, bool other) {
        const double error = other ? magnitude + centre : magnitude - centre;
        double least = error * error + price[0];
        for (unsigned k = other ? 1 : 2; k <= kTopMagnitude; k += 2) {
          const double far = magnitude - (k + 0.5);
          least = std::min(least, far * far + price[k]);
        }
        return least;
      };
      for (int i = 0; i < 64; ++i) {
        const double magnitude = (i + 0.5) / 16;
        const double ratio = cost(magnitude, true) - cost(magnitude, false);
        of[c].llr[i] = static_cast<std::int8_t>(
            std::min(std::max(std::floor(kRatio * ratio + 0.5), -127.0), 127.0));
      }
      for (int i = 0; i < kCosts; ++i) {
        const double magnitude = (i + 0.5) / 16;
        const double same = cost(magnitude, false);
        const double other = cost(magnitude, true);
        const double against = 1 / (1 + portable_exp(kCertainty * std::fabs(other - same)));
        const double mean = std::min(same, other) + against * std::fabs(other - same);
        this->cost[c][i] = static_cast<float>(kSquaredSpacing * mean + kBitWorth * kBitsOfHalf);
      }
      // Where the next point of a half costs as much as the first one.
      const auto bound = [&](double near, unsigned k) {
        const double far = k + 0.5;
        return (far * far - near * near + price[k] - price[0]) / (2 * (far - near));
      };
      of[c].same = static_cast<std::int16_t>(32 - std::floor(16 * bound(centre, 2) + 0.5));
      of[c].other = static_cast<std::int16_t>(32 - std::floor(16 * bound(-centre, 1) + 0.5));
    }
  }

 private:
  static constexpr double kRatio = 58;  // LLR of a squared distance
  // The odds that a codeword has the bit that costs more are exp(-certainty * difference).
  static constexpr double kCertainty = 6;
  static constexpr double kBitsOfHalf = 29.0 / 64;
};

// The element in sixteenths of the points' distance.
int place_of(float x, float scale) {
  const float scaled = std::fabs(x) * scale;
  return static_cast<int>(scaled < kLatticeTop ? scaled : kLatticeTop);
}

std::uint8_t index_symbol(unsigned of_class, unsigned index) {
  const unsigned magnitude = std::min(index, kTopMagnitude);
  return static_cast<std::uint8_t>(of_class * kClassSymbols +
                                   (magnitude == 0 ? 0 : 2 * magnitude - 1));
}

// Which groups are the first to be of points where only some may be: numbers that fill 0 to 255
// evenly, by the golden ratio.
std::uint8_t turn_of(std::size_t group) {
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(group) * 0x9E3779B1u >> 24);
}

// Means and squares of what some elements are away from somewhere.
struct Offsets {
  double sum = 0;
  double squares = 0;
  double count = 0;

  void add(double offset) {
    sum += offset;
    squares += offset * offset;
    ++count;
  }
  void add(const Offsets& others) {
    sum += others.sum;
    squares += others.squares;
    count += others.count;
  }
  // The squared error where the mean is made up for.
  double error() const { return count == 0 ? 0 : squares - sum * sum / count; }
};

// The level of this magnitude, or, at the top one, of an element of so many steps.
float level_near(unsigned magnitude, float size) {
  return magnitude < kTopMagnitude ? static_cast<float>(magnitude) : std::floor(size + 0.5f);
}

// What elements cost as levels, in squares of the step.
struct LevelCosts {
  float bits[kClasses][kTopMagnitude + 1];

  explicit LevelCosts(const AdaptiveTables& tables) {
    for (unsigned c = 0; c < kClasses; ++c) {
      for (unsigned m = 0; m <= kTopMagnitude; ++m) {
        bits[c][m] = static_cast<float>(kBitWorth * tables.bits(c, m));
      }
    }
  }

  // Of an element of so many steps, whose symbol is this one of its class.
  float of(unsigned of_class, unsigned symbol, float size) const {
    const unsigned magnitude = (symbol + 1) / 2;
    const float off = size - level_near(magnitude, size);
    return off * off + bits[of_class][magnitude];
  }
};

// Those of levels 0, 1 and others, in steps.
struct LevelOffsets {
  Offsets of[3];

  void add(const float* x, const std::uint8_t* symbols, std::size_t n, float inverse) {
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned magnitude = (symbols[i] % kClassSymbols + 1u) / 2;
      const float size = std::fabs(x[i]) * inverse;
      of[std::min(magnitude, 2u)].add(static_cast<double>(size - level_near(magnitude, size)));
    }
  }
  void add(const LevelOffsets& others) {
    for (std::size_t i = 0; i < 3; ++i) of[i].add(others.of[i]);
  }
  // 0 has no sign that a mean could have.
  double error() const { return of[0].squares + of[1].error() + of[2].error(); }
};

// Calls fn(index) for all bands of a tensor of n elements, on all threads.
template <typename Fn>
void for_bands(std::size_t bands, std::size_t n, const Fn& fn) {
  for_parts(bands, range_count(n) == 1 ? 1 : bands,
            [&](std::size_t, std::size_t begin, std::size_t end) {
              for (std::size_t b = begin; b < end; ++b) fn(b);
            });
}

}  // namespace

// What coding has found, in a band or in all.
struct GroupCoder::Found {
  std::size_t points = 0;
  std::uint64_t levels[kSymbolCounts] = {};
  std::uint64_t indices[kSymbolCounts] = {};
  std::uint64_t groups[kClasses][2] = {};  // of levels and of points
  // Of points, of index 0 by class and others, in their distance.
  Offsets first[kClasses];
  Offsets other;
  LevelOffsets level_offsets;

  void add(const Found& found) {
    points += found.points;
    for (std::size_t s = 0; s < kSymbolCounts; ++s) {
      levels[s] += found.levels[s];
      indices[s] += found.indices[s];
    }
    for (std::size_t c = 0; c < kClasses; ++c) {
      groups[c][0] += found.groups[c][0];
      groups[c][1] += found.groups[c][1];
      first[c].add(found.first[c]);
    }
    other.add(found.other);
    level_offsets.add(found.level_offsets);
  }
  // In squares of the step.
  double error() const {
    double sum = other.error();
    for (const Offsets& one : first) sum += one.error();
    return kSquaredSpacing * sum + level_offsets.error();
  }
};

// A band on its way to a stream.
struct GroupCoder::Band {
  Band(const float* elements, const std::uint8_t* of_levels, std::size_t height, std::size_t width)
      : x(elements),
        as_levels(of_levels),
        rows(height),
        cols(width),
        symbols(of_levels, of_levels + height * width) {}

  const float* x;
  const std::uint8_t* as_levels;  // all symbols, where no group is of points; gone after coding
  std::size_t rows;
  std::size_t cols;

  std::vector<std::uint8_t> symbols;  // before and after coding
  std::vector<std::uint8_t> groups;   // class * kClassSymbols + whether it is of points
  std::vector<std::uint32_t> excesses;
  std::vector<std::uint8_t> words;
  Found found;

  std::size_t groups_in_row() const { return (cols + kGroup - 1) / kGroup; }
  bool of_points(std::size_t group) const { return (groups[group] & 1) != 0; }

  // Calls fn(group, column, first element, elements) for all groups.
  template <typename Fn>
  void for_groups(const Fn& fn) const {
    std::size_t group = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t at = 0; at < cols; at += kGroup, ++group) {
        fn(group, at, i * cols + at, std::min(kGroup, cols - at));
      }
    }
  }

  unsigned class_of(std::size_t i) const { return symbols[i] / kClassSymbols; }

  void choose_groups(const LevelCosts& costs, const Rules& rules, float inverse, float scale,
                     std::uint8_t most) {
    groups.assign(rows * groups_in_row(), 0);
    for_groups([&](std::size_t group, std::size_t, std::size_t begin, std::size_t count) {
      if (most != kAllGroups && turn_of(group) >= most) return;
      float gain = 0;
      float largest = 0;
      for (std::size_t i = begin; i < begin + count; ++i) {
        const unsigned level = as_levels[i] % kClassSymbols;
        gain += costs.of(class_of(i), level, std::fabs(x[i]) * inverse) -
                rules.cost[class_of(i)][std::min(place_of(x[i], scale), Rules::kCosts - 1)];
        largest = std::max(largest, std::fabs(x[i]));
      }
      if (!(gain > 0 && largest * scale < kLatticeTop)) return;
      groups[group] = 1;
      found.points += count;
    });
    if (found.points >= kMinPoints) return;
    std::fill(groups.begin(), groups.end(), std::uint8_t{0});
    found.points = 0;
  }

  // The words of 64 bits that Codewords::place() leads to.
  std::vector<std::uint64_t> find_words(const Rules& rules, float scale, const Codewords& codes) {
    std::vector<std::int8_t> llr(kLanes * codes.rows(), 0);
    std::size_t element = 0;
    for_groups([&](std::size_t group, std::size_t, std::size_t begin, std::size_t count) {
      if (!of_points(group)) return;
      for (std::size_t i = begin; i < begin + count; ++i) {
        const std::int8_t ratio = lattice_llr(rules.of[class_of(i)], place_of(x[i], scale));
        llr[codes.place(element++)] = static_cast<std::int8_t>(std::signbit(x[i]) ? -ratio : ratio);
      }
    });
    std::vector<std::uint64_t> bits(codes.rows());
    words.resize(codes.bytes());
    codes.encode(llr.data(), bits.data(), words.data());
    return bits;
  }

  // The classes of the symbols decide on groups and halves; those found in the end may differ.
  void code(const LevelCosts& costs, const Rules& rules, float step, std::uint8_t most) {
    const float scale = 16 / (kSpacing * step);
    const DeadZone zone = dead_zone(step);
    found = {};
    excesses.clear();
    choose_groups(costs, rules, zone.inverse, scale, most);
    const Codewords codes(found.points);
    const std::vector<std::uint64_t> bits = find_words(rules, scale, codes);
    std::vector<std::int16_t> columns;
    Contexts contexts = first_contexts(cols, &columns);
    std::size_t element = 0;
    for_groups([&](std::size_t group, std::size_t at, std::size_t begin, std::size_t count) {
      contexts.shift = column_shift(begin / cols);
      const unsigned of_group = group_class(contexts, at, count);
      const unsigned as_points = of_points(group) ? 1 : 0;
      ++found.groups[of_group][as_points];
      groups[group] = static_cast<std::uint8_t>(of_group * kClassSymbols + as_points);
      if (as_points == 0) {
        code_levels(zone, at, begin, count, contexts);
        return;
      }
      std::uint8_t classes[kGroup];
      std::uint8_t indices[kGroup];
      find_classes(contexts, at, classes);
      for (std::size_t k = 0; k < count; ++k, ++element) {
        const std::size_t place = codes.place(element);
        const bool bit = (bits[place / kLanes] >> (place % kLanes) & 1) != 0;
        indices[k] = code_point(begin + k, classes[k], bit, rules, scale);
      }
      take_note_of_points(contexts, at, count, indices);
    });
  }

  void code_levels(const DeadZone& zone, std::size_t at, std::size_t begin, std::size_t count,
                   Contexts& contexts) {
    std::uint8_t* const to = symbols.data() + begin;
    Contexts here{contexts.columns + at, contexts.row, contexts.shift};
    kernels().coding->classify(x + begin, count, zone, here, to);
    contexts.row = here.row;
    for (std::size_t k = 0; k < count; ++k) ++found.levels[to[k]];
    found.level_offsets.add(x + begin, to, count, zone.inverse);
    find_excesses({x + begin, to, 1, count}, zone, &excesses);
  }

  // Returns the index, at most kTopMagnitude.
  std::uint8_t code_point(std::size_t i, unsigned of_class, bool bit, const Rules& rules,
                          float scale) {
    const bool other = bit != std::signbit(x[i]);
    const int pairs = lattice_pairs(rules.of[of_class], place_of(x[i], scale), other);
    const auto index = static_cast<unsigned>(lattice_index(pairs, other));
    symbols[i] = index_symbol(of_class, index);
    ++found.indices[symbols[i]];
    if (index >= kTopMagnitude) excesses.push_back(index - kTopMagnitude);
    const bool below = ((index & 1) != 0) != bit;
    const double size = static_cast<double>((below ? -x[i] : x[i]) * scale) / 16;
    if (index == 0) {
      found.first[of_class].add(size);
    } else {
      found.other.add(size - (index + 0.5));
    }
    return static_cast<std::uint8_t>(std::min(index, kTopMagnitude));
  }
};

std::size_t GroupForm::write(std::uint8_t* out) const {
  out[0] = start;
  if (start == kNoPoints) return 1;
  out[1] = static_cast<std::uint8_t>((first + 8) | (other + 8) << 4);
  return 2 + indices.write(out + 2);
}

std::size_t GroupForm::read(Span<const std::uint8_t> in) {
  if (in.empty() || in[0] > kNoPoints) return 0;
  start = in[0];
  if (start == kNoPoints) return 1;
  if (in.size() < 2) return 0;
  first = static_cast<std::int8_t>((in[1] & 15) - 8);
  other = static_cast<std::int8_t>((in[1] >> 4) - 8);
  const std::size_t bytes = indices.read({in.data() + 2, in.size() - 2});
  return bytes == 0 ? 0 : 2 + bytes;
}

std::uint32_t GroupForm::points_of(unsigned group_class) const {
  const int distance = static_cast<int>(group_class) + kFarthest - start;
  return kPointsOf[std::min(std::max(distance, -kFarthest), kFarthest) + kFarthest];
}

void GroupForm::fill_values(float step, float* values) const {
  const auto put = [&](std::int8_t code, float size) {
    values[static_cast<std::uint8_t>(code)] = size;
    values[static_cast<std::uint8_t>(code + 1)] = -size;
  };
  const float distance = kSpacing * step;
  for (unsigned c = 0; c < kClasses; ++c) {
    const auto parts = static_cast<float>(kCentres[indices.level(c)] + first);
    put(first_point_code(c, false), parts * kPart * distance);
  }
  for (int index = 1; index <= static_cast<int>(kTopMagnitude); ++index) {
    put(other_point_code(index, false), value(step, index));
  }
}

float GroupForm::value(float step, std::int32_t index) const {
  const auto parts = static_cast<float>(64 * std::abs(index) + 32 + other);
  const float size = std::min(parts * kPart * (kSpacing * step), std::numeric_limits<float>::max());
  return index < 0 ? -size : size;
}

GroupCoder::GroupCoder(const Quantized& quantized, const Counted& counted,
                       const std::uint8_t* symbols, std::uint8_t groups)
    : step_(counted.step), groups_(groups) {
  const Shape2& shape = quantized.shape();
  for (std::size_t b = 0; b < shape.bands(); ++b) {
    const std::size_t begin = b * shape.band_rows();
    const std::size_t rows = std::min(shape.band_rows(), shape.rows - begin);
    const std::size_t at = begin * shape.cols;
    bands_.emplace_back(quantized.rest() + at, symbols + at, rows, shape.cols);
  }
  // First by what there is without points, then by what there is with them.
  const Found found =
      code(AdaptiveTables::best(counted.counts), AdaptiveTables(SymbolKind::kIndices));
  if (found.points == 0) {
    find_form(quantized, counted, found);
  } else {
    find_form(quantized, counted,
              code(AdaptiveTables::best(found.levels),
                   AdaptiveTables::best(found.indices, SymbolKind::kIndices)));
  }
}

GroupCoder::~GroupCoder() = default;

GroupCoder::Found GroupCoder::code(const AdaptiveTables& levels, const AdaptiveTables& indices) {
  const LevelCosts costs(levels);
  const Rules rules(indices);
  std::size_t n = 0;
  for (const Band& band : bands_) n += band.symbols.size();
  for_bands(bands_.size(), n, [&](std::size_t b) { bands_[b].code(costs, rules, step_, groups_); });
  Found found;
  for (const Band& band : bands_) found.add(band.found);
  return found;
}

void GroupCoder::find_form(const Quantized& quantized, const Counted& counted, const Found& found) {
  const double alone = quantized.finish(counted, &tables_);
  bytes_ = alone == 1 ? 1 : alone + 1;
  LevelOffsets before;
  for (const Band& band : bands_)
    before.add(band.x, band.as_levels, band.symbols.size(), 1 / step_);
  error_ = before.error();
  if (found.points == 0) return;
  Counted levels;
  levels.step = step_;
  std::copy(found.levels, found.levels + kSymbolCounts, levels.counts);
  double bytes = 2;
  for (const Band& band : bands_) {
    levels.excess += static_cast<double>(excess_bits(band.excesses));
    bytes += static_cast<double>(kCountBytes + band.words.size());
  }
  GroupForm form;
  form.indices = AdaptiveTables::best(found.indices, SymbolKind::kIndices);
  double least = std::numeric_limits<double>::infinity();
  for (std::uint8_t start = 0; start < GroupForm::kNoPoints; ++start) {
    GroupForm trial;
    trial.start = start;
    double bits = 0;
    for (unsigned c = 0; c < kClasses; ++c) {
      const std::uint32_t ones = trial.points_of(c);
      bits += static_cast<double>(found.groups[c][0]) * (14 - portable_log2(kRansTotal - ones)) +
              static_cast<double>(found.groups[c][1]) * (14 - portable_log2(ones));
    }
    if (bits < least) {
      least = bits;
      form.start = start;
    }
  }
  AdaptiveTables tables;
  bytes += quantized.finish(levels, &tables) + (form.indices.bits(found.indices) + least) / 8;
  // Where only some groups may be of points, both cost about the same.
  const double cost = found.error() - error_ + kBitWorth * 8 * (bytes - bytes_);
  if (groups_ == kAllGroups && cost >= 0) return;
  bytes_ = bytes;
  error_ = found.error();
  tables_ = tables;
  form_ = form;
  double off = 0;
  double count = 0;
  for (std::size_t c = 0; c < kClasses; ++c) {
    off += 64 * found.first[c].sum - found.first[c].count * kCentres[form.indices.level(c)];
    count += found.first[c].count;
  }
  const auto mean = [](double sum, double number) {
    if (number == 0) return std::int8_t{0};
    return static_cast<std::int8_t>(std::min(std::max(std::floor(sum / number + 0.5), -8.0), 7.0));
  };
  form_.first = mean(off, count);
  form_.other = mean(64 * found.other.sum, found.other.count);
}

void GroupCoder::put_levels(std::uint8_t* symbols) const {
  for (const Band& band : bands_) {
    std::uint8_t* const to = symbols + (band.x - bands_[0].x);
    band.for_groups([&](std::size_t group, std::size_t, std::size_t begin, std::size_t count) {
      if (band.of_points(group)) {
        std::fill(to + begin, to + begin + count, std::uint8_t{0});
      } else {
        std::copy_n(band.symbols.begin() + static_cast<std::ptrdiff_t>(begin), count, to + begin);
      }
    });
  }
}

std::size_t GroupCoder::encode_band(std::size_t index, Span<const SymbolMatrix> factors,
                                    std::size_t lanes, std::uint8_t* out, std::size_t room) const {
  const Band& band = bands_[index];
  const std::uint8_t* const end = out + room;
  if (room < kCountBytes + band.words.size()) return 0;
  store(out, static_cast<std::uint32_t>(band.found.points));
  std::uint8_t* to = std::copy(band.words.begin(), band.words.end(), out + kCountBytes);
  std::vector<std::uint32_t> excesses;
  for (const SymbolMatrix& matrix : factors) find_excesses(matrix, whole_numbers(), &excesses);
  excesses.insert(excesses.end(), band.excesses.begin(), band.excesses.end());
  if (!write_excesses(excesses, &to, end)) return 0;
  const RansEncodeTable of_levels = tables_.encode_table();
  const RansEncodeTable of_points = form_.indices.encode_table();
  RansEncodeTable of_groups{};
  for (unsigned c = 0; c < kClasses; ++c) {
    const std::uint32_t ones = form_.points_of(c);
    of_groups.of[c * kClassSymbols] = rans_symbol(0, kRansTotal - ones);
    of_groups.of[c * kClassSymbols + 1] = rans_symbol(kRansTotal - ones, ones);
  }
  SymbolWriter writer(to, end, lanes);
  std::size_t group = band.groups.size();
  for (std::size_t i = band.rows; i-- > 0;) {
    for (std::size_t last = band.cols; last != 0;) {
      const std::size_t at = (last - 1) / kGroup * kGroup;
      --group;
      const std::uint8_t* const symbols = band.symbols.data() + i * band.cols + at;
      if (!writer.push(symbols, last - at, band.of_points(group) ? of_points : of_levels) ||
          !writer.push(&band.groups[group], 1, of_groups)) {
        return 0;
      }
      last = at;
    }
  }
  for (std::size_t m = factors.size(); m-- > 0;) {
    if (!writer.push(factors[m], of_levels)) return 0;
  }
  const std::uint8_t* const finish = writer.finish();
  return finish == nullptr ? 0 : static_cast<std::size_t>(finish - out);
}

namespace {

// The groups of a band, one after the other.
class GroupReader {
 public:
  GroupReader(SymbolReader& symbols, const ClassTables& levels, const GroupForm& form,
              const Codewords& codes, const std::uint64_t* bits, std::size_t points)
      : symbols_(symbols),
        levels_(levels),
        form_(form),
        codes_(codes),
        bits_(bits),
        points_(points) {
    form.indices.fill(&indices_);
  }

  bool read(const LevelMatrix& band) {
    std::vector<std::int16_t> columns;
    Contexts contexts = first_contexts(band.cols, &columns);
    for (std::size_t i = 0; i < band.rows; ++i) {
      contexts.shift = column_shift(i);
      for (std::size_t at = 0; at < band.cols; at += kGroup) {
        const std::size_t count = std::min(kGroup, band.cols - at);
        if (!read_group(contexts, at, count, band.levels + i * band.cols + at)) return false;
      }
    }
    return element_ == points_;
  }

 private:
  bool read_group(Contexts& contexts, std::size_t at, std::size_t count, std::int8_t* levels) {
    bool of_points = false;
    if (!symbols_.flag(form_.points_of(group_class(contexts, at, count)), &of_points)) return false;
    if (of_points) return read_points(contexts, at, count, levels);
    Contexts here{contexts.columns + at, contexts.row, contexts.shift};
    const bool enough = symbols_.row(levels_, here, levels, count);
    contexts.row = here.row;
    return enough;
  }

  bool read_points(Contexts& contexts, std::size_t at, std::size_t count, std::int8_t* levels) {
    if (count > points_ - element_) return false;
    // What row() takes note of are indices: it gets means of its own.
    std::int16_t means[kGroup];
    std::copy_n(contexts.columns + at, kGroup, means);
    Contexts here{means, contexts.row, contexts.shift};
    std::uint8_t classes[kGroup];
    find_classes(here, 0, classes);
    if (!symbols_.row(indices_, here, levels, count)) return false;
    std::uint8_t indices[kGroup];
    for (std::size_t k = 0; k < count; ++k, ++element_) {
      const std::size_t place = codes_.place(element_);
      const bool bit = (bits_[place / kLanes] >> (place % kLanes) & 1) != 0;
      const int index = levels[k];
      indices[k] = static_cast<std::uint8_t>(index);
      const bool negative = ((index & 1) != 0) != bit;
      levels[k] =
          index == 0 ? first_point_code(classes[k], negative) : other_point_code(index, negative);
    }
    take_note_of_points(contexts, at, count, indices);
    return true;
  }

  SymbolReader& symbols_;
  const ClassTables& levels_;
  const GroupForm& form_;
  const Codewords& codes_;
  const std::uint64_t* bits_;
  std::size_t points_;
  std::size_t element_ = 0;
  ClassTables indices_;
};

}  // namespace

bool decode_groups(Span<const std::uint8_t> in, const ClassTables& levels, const GroupForm& form,
                   std::size_t lanes, Span<LevelMatrix> matrices) {
  const LevelMatrix& band = *(matrices.end() - 1);
  if (in.size() < kCountBytes) return false;
  const std::size_t points = load<std::uint32_t>(in.data());
  if (points > band.size()) return false;
  const Codewords codes(points);
  const std::size_t head = kCountBytes + codes.bytes();
  if (in.size() < head) return false;
  std::vector<std::uint64_t> bits(codes.rows());
  if (!codes.decode(in.data() + kCountBytes, bits.data())) return false;
  in = {in.data() + head, in.size() - head};
  SymbolReader reader;
  if (!reader.open(in, lanes)) return false;
  for (std::size_t m = 0; m + 1 < matrices.size(); ++m) {
    if (!reader.matrix(levels, matrices[m])) return false;
  }
  return GroupReader(reader, levels, form, codes, bits.data(), points).read(band) &&
         reader.finished() && read_excesses({in.data(), reader.left()}, matrices);
}

}  // namespace gradcomp
