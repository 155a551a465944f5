#include "codecs/adaptive/group_coder.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.hpp"
#include "base/logarithm.hpp"
#include "codecs/adaptive/codewords.hpp"
#include "codecs/adaptive/group_contexts.hpp"
#include "codecs/adaptive/point_costs.hpp"
#include "codecs/adaptive/tensor_plan.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"
#include "polar/lattice.hpp"

namespace gradcomp {
namespace {

// Fewer points in a band are not worth codewords.
constexpr std::size_t kMinPoints = 64;

// The symbol of an index, as FrequencyTables of kIndices code it.
std::uint8_t index_symbol(unsigned of_class, unsigned index) {
  const unsigned magnitude = std::min(index, kTopMagnitude);
  return static_cast<std::uint8_t>(of_class * kClassSymbols +
                                   (magnitude == 0 ? 0 : 2 * magnitude - 1));
}

// Order of the groups in which they become points where only some may: numbers that fill 0 to 255
// evenly (multiples of the golden ratio).
std::uint8_t priority_of(std::size_t group) {
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(group) * 0x9E3779B1u >> 24);
}

}  // namespace

// Statistics of coding, of a band or of all.
struct GroupCoder::BandStats {
  std::size_t points = 0;
  std::uint64_t levels[kSymbols] = {};
  std::uint64_t indices[kSymbols] = {};
  std::uint64_t groups[kClasses][2] = {};  // of levels, and of points
  // Of points, in units of their distance: of index 0, by class, and of all others.
  Offsets first[kClasses];
  Offsets other;
  LevelOffsets level_offsets;

  void add(const BandStats& stats) {
    points += stats.points;
    for (std::size_t s = 0; s < kSymbols; ++s) {
      levels[s] += stats.levels[s];
      indices[s] += stats.indices[s];
    }
    for (std::size_t c = 0; c < kClasses; ++c) {
      groups[c][0] += stats.groups[c][0];
      groups[c][1] += stats.groups[c][1];
      first[c].add(stats.first[c]);
    }
    other.add(stats.other);
    level_offsets.add(stats.level_offsets);
  }
  // In squares of the step.
  double error() const {
    double sum = other.error();
    for (const Offsets& one : first) sum += one.error();
    return kSquaredSpacing * sum + level_offsets.error();
  }
};

// A band, with its groups and symbols as they are coded.
struct GroupCoder::Band {
  Band(const float* elements, const std::uint8_t* of_levels, std::size_t height, std::size_t width)
      : x(elements),
        as_levels(of_levels),
        rows(height),
        cols(width),
        symbols(of_levels, of_levels + height * width) {}

  const float* x;
  const std::uint8_t* as_levels;  // symbols without any points; put_levels() overwrites them
  std::size_t rows;
  std::size_t cols;

  std::vector<std::uint8_t> symbols;  // before coding: as_levels
  std::vector<std::uint8_t> groups;   // class * kClassSymbols, plus 1 for points
  std::vector<std::uint32_t> excesses;
  std::vector<std::uint8_t> words;  // of the polar codes
  BandStats stats;

  std::size_t groups_in_row() const { return gradcomp::groups_in_row(cols); }
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

  // Decides which groups become points; at most `most` of 255.
  void choose_groups(const LevelCosts& costs, const PointRules& rules, float inverse, float scale,
                     std::uint8_t most) {
    groups.assign(rows * groups_in_row(), 0);
    for_groups([&](std::size_t group, std::size_t, std::size_t begin, std::size_t count) {
      if (most != kAllGroups && priority_of(group) >= most) return;
      float gain = 0;
      float largest = 0;
      for (std::size_t i = begin; i < begin + count; ++i) {
        const unsigned level = as_levels[i] % kClassSymbols;
        gain += costs.of(class_of(i), level, std::fabs(x[i]) * inverse) -
                rules.cost[class_of(i)][std::min(place_of(x[i], scale), PointRules::kCosts - 1)];
        largest = std::max(largest, std::fabs(x[i]));
      }
      if (!(gain > 0 && largest * scale < kLatticeTop)) return;
      groups[group] = 1;
      stats.points += count;
    });
    if (stats.points >= kMinPoints) return;
    std::fill(groups.begin(), groups.end(), std::uint8_t{0});
    stats.points = 0;
  }

  // Finds the codewords: a bit for each point, at Codewords::place() in words of 64 bits.
  std::vector<std::uint64_t> find_words(const PointRules& rules, float scale,
                                        const Codewords& codes) {
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

  // Chooses groups and halves by the classes of the symbols before, then codes all elements. Their
  // classes may differ.
  void code(const LevelCosts& costs, const PointRules& rules, float step, std::uint8_t most) {
    const float scale = 16 / (kSpacing * step);
    const DeadZone zone = dead_zone(step);
    stats = {};
    excesses.clear();
    choose_groups(costs, rules, zone.inverse, scale, most);
    const Codewords codes(stats.points);
    const std::vector<std::uint64_t> bits = find_words(rules, scale, codes);
    std::vector<std::int16_t> columns;
    Contexts contexts = first_contexts(cols, &columns);
    std::size_t element = 0;
    for_groups([&](std::size_t group, std::size_t at, std::size_t begin, std::size_t count) {
      contexts.shift = column_shift(begin / cols);
      const unsigned of_group = group_class(contexts, at, count);
      const unsigned as_points = of_points(group) ? 1 : 0;
      ++stats.groups[of_group][as_points];
      groups[group] = static_cast<std::uint8_t>(of_group * kClassSymbols + as_points);
      if (as_points == 0) {
        code_levels(zone, at, begin, count, contexts);
        return;
      }
      std::uint8_t classes[kGroup];
      std::uint8_t indices[kGroup];
      find_element_classes(contexts, at, classes);
      for (std::size_t k = 0; k < count; ++k, ++element) {
        const std::size_t place = codes.place(element);
        const bool bit = (bits[place / kLanes] >> (place % kLanes) & 1) != 0;
        indices[k] = code_point(begin + k, classes[k], bit, rules, scale);
      }
      add_points(contexts, at, count, indices);
    });
  }

  void code_levels(const DeadZone& zone, std::size_t at, std::size_t begin, std::size_t count,
                   Contexts& contexts) {
    std::uint8_t* const to = symbols.data() + begin;
    Contexts here{contexts.columns + at, contexts.row, contexts.shift};
    kernels().coding->classify(x + begin, count, zone, here, to);
    contexts.row = here.row;
    for (std::size_t k = 0; k < count; ++k) ++stats.levels[to[k]];
    stats.level_offsets.add(x + begin, to, count, zone.inverse);
    find_excesses({x + begin, to, 1, count}, zone, &excesses);
  }

  // Codes element i as a point, of the half that `bit` says. Returns its index, at most
  // kTopMagnitude.
  std::uint8_t code_point(std::size_t i, unsigned of_class, bool bit, const PointRules& rules,
                          float scale) {
    const bool other = bit != std::signbit(x[i]);
    const int pairs = lattice_pairs(rules.of[of_class], place_of(x[i], scale), other);
    const auto index = static_cast<unsigned>(lattice_index(pairs, other));
    symbols[i] = index_symbol(of_class, index);
    ++stats.indices[symbols[i]];
    if (index >= kTopMagnitude) excesses.push_back(index - kTopMagnitude);
    const bool below = ((index & 1) != 0) != bit;
    const double size = static_cast<double>((below ? -x[i] : x[i]) * scale) / 16;
    if (index == 0) {
      stats.first[of_class].add(size);
    } else {
      stats.other.add(size - (index + 0.5));
    }
    return static_cast<std::uint8_t>(std::min(index, kTopMagnitude));
  }
};

GroupCoder::GroupCoder(const Quantized& quantized, const SymbolCounts& counted,
                       const std::uint8_t* symbols, std::uint8_t groups)
    : shape_(quantized.shape()), step_(counted.step), groups_(groups) {
  for (std::size_t b = 0; b < shape_.bands(); ++b) {
    const std::size_t at = shape_.band_begin(b) * shape_.cols;
    bands_.emplace_back(quantized.rest() + at, symbols + at, shape_.rows_of_band(b), shape_.cols);
  }
  // First with the tables for levels alone, then with those for the groups that this has chosen.
  const BandStats stats =
      code(FrequencyTables::best(counted.counts), FrequencyTables(SymbolKind::kIndices));
  if (stats.points == 0) {
    find_form(quantized, counted, stats);
  } else {
    find_form(quantized, counted,
              code(FrequencyTables::best(stats.levels),
                   FrequencyTables::best(stats.indices, SymbolKind::kIndices)));
  }
}

GroupCoder::~GroupCoder() = default;

GroupCoder::BandStats GroupCoder::code(const FrequencyTables& levels,
                                       const FrequencyTables& indices) {
  const LevelCosts costs(levels);
  const PointRules rules(indices);
  shape_.for_bands([&](std::size_t b) { bands_[b].code(costs, rules, step_, groups_); });
  BandStats stats;
  for (const Band& band : bands_) stats.add(band.stats);
  return stats;
}

void GroupCoder::find_form(const Quantized& quantized, const SymbolCounts& counted,
                           const BandStats& stats) {
  const double alone = quantized.finish(counted, &tables_);
  bytes_ = alone == 1 ? 1 : alone + 1;
  LevelOffsets before;
  for (const Band& band : bands_)
    before.add(band.x, band.as_levels, band.symbols.size(), 1 / step_);
  error_ = before.error();
  if (stats.points == 0) return;
  SymbolCounts levels;
  levels.step = step_;
  std::copy(stats.levels, stats.levels + kSymbols, levels.counts);
  double bytes = 2;
  for (const Band& band : bands_) {
    levels.excess += static_cast<double>(excess_bits(band.excesses));
    bytes += static_cast<double>(kPointCountBytes + band.words.size());
  }
  GroupForm form;
  form.indices = FrequencyTables::best(stats.indices, SymbolKind::kIndices);
  double least = std::numeric_limits<double>::infinity();
  for (std::uint8_t start = 0; start < GroupForm::kNoPoints; ++start) {
    GroupForm trial;
    trial.start = start;
    double bits = 0;
    for (unsigned c = 0; c < kClasses; ++c) {
      const std::uint32_t ones = trial.points_of(c);
      bits += static_cast<double>(stats.groups[c][0]) * (14 - portable_log2(kRansTotal - ones)) +
              static_cast<double>(stats.groups[c][1]) * (14 - portable_log2(ones));
    }
    if (bits < least) {
      least = bits;
      form.start = start;
    }
  }
  FrequencyTables tables;
  bytes += quantized.finish(levels, &tables) + (form.indices.bits(stats.indices) + least) / 8;
  // With a limit on the groups of points both cost about the same, so the caller decides.
  const double cost = stats.error() - error_ + kBitWorth * 8 * (bytes - bytes_);
  if (groups_ == kAllGroups && cost >= 0) return;
  bytes_ = bytes;
  error_ = stats.error();
  tables_ = tables;
  form_ = form;
  double off = 0;
  double count = 0;
  for (std::size_t c = 0; c < kClasses; ++c) {
    off +=
        64 * stats.first[c].sum - stats.first[c].count * GroupForm::centre(form.indices.level(c));
    count += stats.first[c].count;
  }
  const auto mean = [](double sum, double number) {
    if (number == 0) return std::int8_t{0};
    return static_cast<std::int8_t>(std::min(std::max(std::floor(sum / number + 0.5), -8.0), 7.0));
  };
  form_.first = mean(off, count);
  form_.other = mean(64 * stats.other.sum, stats.other.count);
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
                                    std::size_t lanes, std::uint8_t* out,
                                    std::size_t capacity) const {
  const Band& band = bands_[index];
  const std::uint8_t* const end = out + capacity;
  if (capacity < kPointCountBytes + band.words.size()) return 0;
  store(out, static_cast<std::uint32_t>(band.stats.points));
  std::uint8_t* to = std::copy(band.words.begin(), band.words.end(), out + kPointCountBytes);
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

}  // namespace gradcomp
