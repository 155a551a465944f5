#include "polar/lattice_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "polar/lattice.hpp"

namespace gradcomp {
namespace {

// The largest LLR.
constexpr double kPeak = 60;
// How certain the code's decisions are, measured on normal elements: the odds against an LLR are
// exp(certainty |LLR|).
double certainty(double rate) { return 0.0574 + 0.0021 / (rate * rate * rate); }

// The least cost of a point of one half: squared error and a price for each unit of its index.
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
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const std::size_t bin = (bits & 0x7FFFFFFFu) >> kShift;
    if (bin < kBins) ++counts_[bin];
  }
}

Magnitudes Magnitudes::normal() {
  Magnitudes result;
  double below = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    const auto edge = static_cast<std::uint32_t>(bin + 1) << kShift;
    float end;
    std::memcpy(&end, &edge, sizeof end);
    const double reached = std::erf(static_cast<double>(end) / std::sqrt(2.0));
    result.counts_[bin] = static_cast<std::uint32_t>(std::lround((reached - below) * 0x1p30));
    below = reached;
  }
  return result;
}

double Magnitudes::centre(std::size_t bin) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bin) << kShift | 1u << (kShift - 1);
  float middle;
  std::memcpy(&middle, &bits, sizeof middle);
  // The first bin is mostly zeros.
  return bin == 0 ? 0.0 : static_cast<double>(middle);
}

LatticeDesign::LatticeDesign(double rate) {
  // What an index costs more than the one before, in squared steps. At high rates all cost the
  // same.
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
    other_[i] = static_cast<std::uint16_t>(
        std::lround(1024 / (1 + std::exp(certainty(rate) * static_cast<double>(rule_.llr[i])))));
  }
  rule_.same = static_cast<std::int16_t>(8 - std::lround(8 * price));
  rule_.other = static_cast<std::int16_t>(24 - std::lround(4 * price));
}

double LatticeDesign::entropy(const Magnitudes& magnitudes, double step) const {
  std::uint64_t counts[256] = {};
  std::uint64_t total = 0;
  magnitudes.for_bins([&](double value, std::uint64_t count) {
    const double scaled = value / step * 16;
    const int place = scaled < static_cast<double>(kLatticeTop) ? static_cast<int>(scaled)
                                                                : static_cast<int>(kLatticeTop);
    const std::uint64_t other = count * other_[std::min(place, (place & 31) | 32)];
    counts[2 * ((place + rule_.same) >> 5)] += 1024 * count - other;
    counts[std::max(2 * ((place + rule_.other) >> 5) - 1, 0)] += other;
    total += 1024 * count;
  });
  double bits = 0;
  for (const std::uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    bits -= share * std::log2(share);
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
    (entropy(magnitudes, rms * std::exp2(middle)) > bits ? low : high) = middle;
  }
  return rms * std::exp2(0.5 * (low + high));
}

}  // namespace gradcomp
