#include "polar/lattice_step.hpp"

#include <algorithm>
#include <cmath>

#include "base/bytes.hpp"
#include "polar/elementary.hpp"
#include "polar/lattice.hpp"

namespace gradcomp {
namespace {

// Largest LLR.
constexpr double kPeak = 60;
// Certainty of the code's decisions, measured on normal elements: the odds against an LLR are
// exp(certainty |LLR|).
double certainty(double rate) { return 0.0574 + 0.0021 / (rate * rate * rate); }

// Least cost of a point of one half: squared error plus a price for each unit of its index.
double cost(double magnitude, bool other, double price) {
  double least = other ? (magnitude + 0.5) * (magnitude + 0.5) : 1e9;
  for (int index = other ? 1 : 0; index < 8; index += 2) {
    const double error = magnitude - (index + 0.5);
    least = std::min(least, error * error + price * index);
  }
  return least;
}

}  // namespace

void Magnitudes::add(const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t bin = (float_bits(x[i]) & 0x7FFFFFFFu) >> kShift;
    if (bin < kBins) ++counts_[bin];
  }
}

Magnitudes Magnitudes::normal() {
  Magnitudes result;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    const double middle = centre(bin);
    if (middle > 8) break;
    const double width = static_cast<double>(edge(bin + 1)) - static_cast<double>(edge(bin));
    const double density = 0.797884560802865356 * portable_exp(-0.5 * middle * middle);
    result.counts_[bin] = static_cast<std::uint32_t>(std::lround(density * width * 0x1p30));
  }
  return result;
}

float Magnitudes::edge(std::size_t bin) {
  return bits_float(static_cast<std::uint32_t>(bin) << kShift);
}

double Magnitudes::centre(std::size_t bin) {
  // The first bin is mostly zeros.
  if (bin == 0) return 0;
  return static_cast<double>(
      bits_float(static_cast<std::uint32_t>(bin) << kShift | 1u << (kShift - 1)));
}

LatticeDesign::LatticeDesign(double rate) {
  // Cost of an index in excess of the one before, in squared steps. At high rates all indices cost
  // the same.
  const double price = std::max(0.0, 0.28 / rate - 0.1);
  double ratios[64];
  double largest = 0;
  for (int i = 0; i < 64; ++i) {
    const double magnitude = (i + 0.5) / 16;
    ratios[i] = cost(magnitude, true, price) - cost(magnitude, false, price);
    largest = std::max(largest, std::fabs(ratios[i]));
  }
  for (int i = 0; i < 64; ++i) {
    rule_.llr[i] = static_cast<std::int8_t>(std::lround(kPeak * ratios[i] / largest));
    other_[i] = static_cast<std::uint16_t>(std::lround(
        1024 / (1 + portable_exp(certainty(rate) * static_cast<double>(rule_.llr[i])))));
  }
  rule_.same = static_cast<std::int16_t>(8 - std::lround(8 * price));
  rule_.other = static_cast<std::int16_t>(24 - std::lround(4 * price));
}

double LatticeDesign::index_bits(const Magnitudes& magnitudes, double step) const {
  std::uint64_t counts[256] = {};
  std::uint64_t total = 0;
  std::uint64_t outliers = 0;
  magnitudes.for_bins([&](double value, std::uint64_t count) {
    const double scaled = value / step * 16;
    total += 1024 * count;
    if (scaled >= static_cast<double>(kLatticeTop)) {
      outliers += 1024 * count;
      counts[0] += 1024 * count;
      return;
    }
    const int place = static_cast<int>(scaled);
    const std::uint64_t other = count * other_[std::min(place, (place & 31) | 32)];
    counts[2 * ((place + rule_.same) >> 5)] += 1024 * count - other;
    counts[std::max(2 * ((place + rule_.other) >> 5) - 1, 0)] += other;
  });
  // More outliers than the payload may have.
  if (64 * outliers > total) return 64;
  double bits = 8 * static_cast<double>(kOutlierBytes) * static_cast<double>(outliers) /
                static_cast<double>(total);
  for (const std::uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    bits -= share * portable_log2(share);
  }
  return bits;
}

double LatticeDesign::find_step(const Magnitudes& magnitudes, double bits) const {
  double squares = 0;
  double total = 0;
  magnitudes.for_bins([&](double value, std::uint64_t count) {
    squares += value * value * static_cast<double>(count);
    total += static_cast<double>(count);
  });
  if (!(squares > 0)) return 0;
  const double rms = std::sqrt(squares / total);
  double low = -10;  // log2 of the step in root mean squares
  double high = 3;
  for (int i = 0; i < 16; ++i) {
    const double middle = 0.5 * (low + high);
    (index_bits(magnitudes, rms * portable_exp2(middle)) > bits ? low : high) = middle;
  }
  return rms * portable_exp2(0.5 * (low + high));
}

}  // namespace gradcomp
