#include "codecs/adaptive/quantized.hpp"

#include <algorithm>
#include <cmath>

#include "codecs/adaptive/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Half the width of the dead zone in steps, by class. At this magnitude, level 1 saves as much
// error as it costs bits more than 0 (at kBitWorth, with the default shape of the class).
constexpr float kThresholds[kClasses] = {1.17f, 1.12f, 0.99f, 0.89f,  0.84f, 0.79f, 0.76f, 0.74f,
                                         0.71f, 0.66f, 0.64f, 0.585f, 0.53f, 0.5f,  0.5f,  0.5f};
// Outside the dead zone, s steps become level floor(s + kBias), at least 1.
constexpr float kBias = 0.41f;

constexpr double kExcessBits = 5;  // of a symbol of the top magnitude, about

std::uint64_t count_tops(const std::uint64_t* counts) {
  std::uint64_t tops = 0;
  for (std::size_t c = 0; c < kClasses; ++c) {
    const std::uint64_t* const of = counts + c * kClassSymbols;
    tops += of[2 * kTopMagnitude - 1] + of[2 * kTopMagnitude];
  }
  return tops;
}

// Zero groups have no symbols in matrices of so many elements or more, for which the table of flags
// is small, and where at least one of so many groups is one.
constexpr std::size_t kGrouped = std::size_t{1} << 13;
constexpr std::size_t kFewZeroGroups = 4;

// Excesses are estimated where at most one of so many elements has one.
constexpr std::uint64_t kFewTops = 1024;

}  // namespace

double few_excesses(const std::uint64_t* counts) {
  return kExcessBits * static_cast<double>(count_tops(counts));
}

void add_counts(const std::uint8_t* symbols, std::size_t n, std::uint64_t* counts) {
  std::uint32_t found[256] = {};
  kernels().coding->count_classified(symbols, n, found);
  for (std::size_t s = 0; s < kSymbols; ++s) counts[s] += found[s];
}

double error_of(const float* x, const std::uint8_t* symbols, std::size_t n, float step) {
  return kernels().level_error(x, symbols, n, 1 / step, kBias);
}

DeadZone dead_zone(float step) {
  DeadZone zone{1 / step, kBias, {}};
  std::copy(kThresholds, kThresholds + kClasses, zone.threshold);
  return zone;
}

DeadZone whole_numbers() {
  DeadZone zone{1, 0.5f, {}};
  std::fill(zone.threshold, zone.threshold + kClasses, 0.5f);
  return zone;
}

void Quantized::take_out(const SampledRows& sampled, std::size_t rank, float factor_step,
                         float* out) {
  make_low_rank(sampled, rank, x_, shape_.rows, factor_step, &low_rank_);
  std::fill(factor_counts_, factor_counts_ + kSymbols, std::uint64_t{0});
  rest_ = x_;
  if (low_rank_.rank == 0) return;
  subtract_low_rank(low_rank_, x_, shape_.rows, out);
  rest_ = out;
  std::vector<std::uint8_t> symbols;
  for (const SymbolMatrix& matrix : factor_symbols(&symbols)) {
    add_counts(matrix.symbols, matrix.size(), factor_counts_);
  }
}

double Quantized::factor_bytes() const {
  if (low_rank_.rank == 0) return 0;
  const std::size_t low = low_rank_.low_bits();
  const double bits = FrequencyTables::best(factor_counts_).bits(factor_counts_) +
                      few_excesses(factor_counts_) + static_cast<double>(low);
  return bits / 8 + static_cast<double>(factor_fields(low_rank_.rank));
}

std::vector<SymbolMatrix> Quantized::factor_symbols(std::vector<std::uint8_t>* symbols) const {
  const Factor& v = low_rank_.v;
  const Factor& p = low_rank_.p;
  if (low_rank_.rank == 0) return {};
  symbols->resize(v.high.size() + p.high.size());
  std::vector<SymbolMatrix> matrices{
      {v.high.data(), symbols->data(), v.rank, v.size},
      {p.high.data(), symbols->data() + v.high.size(), p.rank, p.size}};
  std::vector<std::int16_t> columns;
  for (const SymbolMatrix& matrix : matrices) classify(matrix, whole_numbers(), &columns);
  return matrices;
}

SymbolCounts Quantized::quantize(float step, std::uint8_t* symbols, ZeroGroups* groups) const {
  const DeadZone zone = dead_zone(step);
  const std::size_t bands = shape_.bands();
  const bool finds = groups != nullptr && groups->packed != nullptr && shape_.size() >= kGrouped;
  if (finds) groups->bands.resize(bands);
  std::vector<std::uint64_t> found(bands * kSymbols, 0);
  const auto symbols_of = [&](std::size_t b) {
    const std::size_t at = shape_.band_begin(b) * shape_.cols;
    return SymbolMatrix{rest() + at, symbols + at, shape_.rows_of_band(b), shape_.cols};
  };
  shape_.for_bands([&](std::size_t b) {
    const SymbolMatrix band = symbols_of(b);
    std::vector<std::int16_t> columns;
    classify(band, zone, &columns);
    if (finds) {
      groups->bands[b].find(band);
    } else {
      add_counts(band.symbols, band.size(), found.data() + b * kSymbols);
    }
  });
  SymbolCounts counted;
  counted.step = step;
  if (finds) {
    std::size_t all = 0, coded = 0;
    for (const BandGroups& band : groups->bands) {
      all += band.groups();
      coded += band.coded();
    }
    counted.zero_groups = (all - coded) * kFewZeroGroups >= all;
    shape_.for_bands([&](std::size_t b) {
      const SymbolMatrix band = symbols_of(b);
      Span<const std::uint8_t> coded_symbols{band.symbols, band.size()};
      if (counted.zero_groups) {
        groups->bands[b].pack(band, groups->packed + shape_.band_begin(b) * shape_.cols);
        coded_symbols = groups->bands[b].packed();
      }
      add_counts(coded_symbols.data(), coded_symbols.size(), found.data() + b * kSymbols);
    });
    if (counted.zero_groups) {
      for (const BandGroups& band : groups->bands) counted.flags.add(band.counts());
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) counted.counts[i % kSymbols] += found[i];
  const SymbolMatrix all{rest(), symbols, shape_.rows, shape_.cols};
  counted.excess = count_tops(counted.counts) * kFewTops <= shape_.size()
                       ? few_excesses(counted.counts)
                       : static_cast<double>(excess_bits(all, zone));
  return counted;
}

bool Quantized::zero_levels(const SymbolCounts& counted) const {
  for (std::size_t s = 0; s < kSymbols; ++s) {
    if (s % kClassSymbols != 0 && counted.counts[s] != 0) return false;
  }
  return true;
}

bool Quantized::all_zero(const SymbolCounts& counted) const {
  const std::vector<float>& p = low_rank_.p.values;
  return zero_levels(counted) &&
         std::all_of(p.begin(), p.end(), [](float value) { return value == 0; });
}

double Quantized::finish(const SymbolCounts& counted, FrequencyTables* tables,
                         FlagTable* flags) const {
  if (zero_levels(counted) && low_rank_.rank == 0) return 1;
  std::uint64_t counts[kSymbols];
  for (std::size_t s = 0; s < kSymbols; ++s) counts[s] = counted.counts[s] + factor_counts_[s];
  *tables = FrequencyTables::best(counts);
  const std::size_t low = low_rank_.low_bits();
  double bits = tables->bits(counts) + counted.excess + few_excesses(factor_counts_) +
                static_cast<double>(low);
  if (counted.zero_groups) {
    *flags = FlagTable::best(counted.flags);
    bits += 8 + flags->bits(counted.flags);
  }
  const std::size_t fields =
      kHeadBytes + (turned_ ? kTurnedBytes : 0) + factor_fields(low_rank_.rank);
  const double coded = bits / 8 + static_cast<double>(fields);
  // A stream ends with 4 bytes for each state; about one of them holds symbols.
  const auto streams = static_cast<double>(shape_.bands());
  return coded + 4 * (streams - 1) + 3 * streams * static_cast<double>(lanes(coded));
}

std::size_t Quantized::lanes(double bytes) const {
  const double each = bytes / static_cast<double>(shape_.bands());
  return each > 6000 ? 32 : each > 1500 ? 8 : each > 400 ? 2 : 1;
}

}  // namespace gradcomp
