#include "codecs/adaptive/quantized.hpp"

#include <algorithm>
#include <cmath>

#include "base/chunks.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// The least magnitude that is not made 0, by class: half a step more than what it gains, at
// kBitWorth, against the bits that the usual table of the class takes more for it.
constexpr float kThresholds[kClasses] = {1.17f, 1.12f, 0.99f, 0.89f,  0.84f, 0.79f, 0.76f, 0.74f,
                                         0.71f, 0.66f, 0.64f, 0.585f, 0.53f, 0.5f,  0.5f,  0.5f};
constexpr float kBias = 0.41f;

constexpr double kExcessBits = 5;  // of a top magnitude, about

std::uint64_t count_tops(const std::uint64_t* counts) {
  std::uint64_t tops = 0;
  for (std::size_t c = 0; c < kClasses; ++c) {
    const std::uint64_t* const of = counts + c * kClassSymbols;
    tops += of[2 * kTopMagnitude - 1] + of[2 * kTopMagnitude];
  }
  return tops;
}

// Of so many elements one may have an excess that is not looked at.
constexpr std::uint64_t kFewTops = 1024;

}  // namespace

double few_excesses(const std::uint64_t* counts) {
  return kExcessBits * static_cast<double>(count_tops(counts));
}

void add_counts(const std::uint8_t* symbols, std::size_t n, std::uint64_t* counts) {
  std::uint32_t found[256];
  count_symbols({symbols, n}, found);
  for (std::size_t s = 0; s < kSymbolCounts; ++s) counts[s] += found[s];
}

double error_of(const float* x, const std::uint8_t* symbols, std::size_t n, float step) {
  constexpr std::size_t kParts = 8;  // which are added up side by side
  const float inverse = 1 / step;
  double sums[kParts] = {};
  const auto add = [&](std::size_t i, std::size_t part) {
    const float size = std::fabs(x[i]) * inverse;
    const int magnitude = (symbols[i] % static_cast<int>(kClassSymbols) + 1) / 2;
    const int rounded = std::max(static_cast<int>(size + kBias), static_cast<int>(kTopMagnitude));
    const int level = magnitude < static_cast<int>(kTopMagnitude) ? magnitude : rounded;
    const float off = size - static_cast<float>(level);
    sums[part] += static_cast<double>(off * off);
  };
  std::size_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (std::size_t part = 0; part < kParts; ++part) add(i + part, part);
  }
  for (; i < n; ++i) add(i, 0);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

Shape2 Shape2::of(std::size_t n, std::size_t cols) {
  if (cols < 2 || cols >= n || n % cols != 0) return {1, n};
  return {n / cols, cols};
}

std::size_t Shape2::band_rows() const { return std::max<std::size_t>(1, kBandElements / cols); }

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

void Quantized::take_out(const Basis& basis, std::size_t rank, float factor_step, float* room) {
  make_low_rank(basis, rank, x_, shape_.rows, factor_step, &low_rank_);
  std::fill(factor_counts_, factor_counts_ + kSymbolCounts, std::uint64_t{0});
  rest_ = x_;
  if (low_rank_.rank == 0) return;
  subtract_low_rank(low_rank_, x_, shape_.rows, room);
  rest_ = room;
  std::vector<std::uint8_t> symbols;
  for (const SymbolMatrix& matrix : factor_symbols(&symbols)) {
    add_counts(matrix.symbols, matrix.size(), factor_counts_);
  }
}

double Quantized::factor_bytes() const {
  if (low_rank_.rank == 0) return 0;
  const std::size_t low = low_rank_.p.low_bits() + low_rank_.v.low_bits();
  const double bits = AdaptiveTables::best(factor_counts_).bits(factor_counts_) +
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

Counted Quantized::quantize(float step, std::uint8_t* symbols) const {
  const DeadZone zone = dead_zone(step);
  const std::size_t bands = shape_.bands();
  std::vector<std::uint64_t> found(bands * kSymbolCounts, 0);
  // Bands are what threads share.
  const std::size_t ranges = range_count(shape_.size()) == 1 ? 1 : bands;
  for_parts(bands, ranges, [&](std::size_t, std::size_t begin, std::size_t end) {
    std::vector<std::int16_t> columns;
    for (std::size_t b = begin; b < end; ++b) {
      const std::size_t first = b * shape_.band_rows();
      const std::size_t rows = std::min(shape_.band_rows(), shape_.rows - first);
      const std::size_t at = first * shape_.cols;
      const SymbolMatrix band{rest() + at, symbols + at, rows, shape_.cols};
      classify(band, zone, &columns);
      add_counts(band.symbols, band.size(), found.data() + b * kSymbolCounts);
    }
  });
  Counted counted;
  counted.step = step;
  for (std::size_t i = 0; i < found.size(); ++i) counted.counts[i % kSymbolCounts] += found[i];
  const SymbolMatrix all{rest(), symbols, shape_.rows, shape_.cols};
  counted.excess = count_tops(counted.counts) * kFewTops <= shape_.size()
                       ? few_excesses(counted.counts)
                       : static_cast<double>(excess_bits(all, zone));
  return counted;
}

double Quantized::finish(const Counted& counted, AdaptiveTables* tables) const {
  std::uint64_t zeros = 0;
  for (std::size_t c = 0; c < kClasses; ++c) zeros += counted.counts[c * kClassSymbols];
  if (zeros == shape_.size() && low_rank_.rank == 0) return 1;
  std::uint64_t counts[kSymbolCounts];
  for (std::size_t s = 0; s < kSymbolCounts; ++s) counts[s] = counted.counts[s] + factor_counts_[s];
  *tables = AdaptiveTables::best(counts);
  const std::size_t low = low_rank_.p.low_bits() + low_rank_.v.low_bits();
  const double bits = tables->bits(counts) + counted.excess + few_excesses(factor_counts_) +
                      static_cast<double>(low);
  const std::size_t fields =
      kAdaptiveHead + (turned_ ? kTurnedHead : 0) + factor_fields(low_rank_.rank);
  const double coded = bits / 8 + static_cast<double>(fields);
  const auto streams = static_cast<double>(shape_.bands());
  return coded + 4 * (streams - 1) + 3 * streams * static_cast<double>(lanes(coded));
}

std::size_t Quantized::lanes(double bytes) const {
  const double each = bytes / static_cast<double>(shape_.bands());
  return each > 6000 ? 32 : each > 1500 ? 8 : each > 400 ? 2 : 1;
}

}  // namespace gradcomp
