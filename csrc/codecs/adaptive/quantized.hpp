// A tensor on the encoder's way from elements to symbols: what pairs leave, quantized with a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/adaptive/low_rank.hpp"
#include "codecs/adaptive/stream.hpp"
#include "codecs/adaptive/tables.hpp"

namespace gradcomp {

// Smaller tensors travel as they are.
inline constexpr std::size_t kMinAdaptive = 64;
// A band of rows has about so many elements, and contexts and a run of rANS of its own.
inline constexpr std::size_t kBandElements = std::size_t{1} << 20;

// Fields of a payload before the tables; between them and the streams, of a turned matrix its rank
// and which basis it is, and with a rank the steps and shifts of the factors.
inline constexpr std::size_t kAdaptiveHead = 10;
inline constexpr std::size_t kTurnedHead = 5;
inline std::size_t factor_fields(std::size_t rank) { return rank == 0 ? 0 : 2 + 3 * rank; }

// How a tensor is seen: a vector is a single row.
struct Shape2 {
  std::size_t rows = 0;
  std::size_t cols = 0;

  static Shape2 of(std::size_t n, std::size_t cols);
  std::size_t size() const { return rows * cols; }
  std::size_t band_rows() const;
  std::size_t bands() const { return (rows + band_rows() - 1) / band_rows(); }
};

// Of so many groups of elements that would rather be of points, Plan::groups may be.
inline constexpr std::uint8_t kAllGroups = 255;

// What quantizing with a step has found.
struct Counted {
  float step = 0;
  std::uint64_t counts[kSymbolCounts] = {};  // of each symbol
  double excess = 0;                         // bits of what exceeds the top magnitude, about
};

// A tensor on its way to symbols.
class Quantized {
 public:
  // Of a matrix that is `turned`, x is that.
  Quantized(const float* x, Shape2 shape, bool turned = false)
      : x_(x), rest_(x), shape_(shape), turned_(turned) {}

  const Shape2& shape() const { return shape_; }
  const float* x() const { return x_; }
  bool turned() const { return turned_; }
  const LowRank& low_rank() const { return low_rank_; }
  // What is left without the low rank part.
  const float* rest() const { return rest_; }

  // Takes out the part of this rank, or nothing. `room` is for the rest, where there is a rank.
  void take_out(const Basis& basis, std::size_t rank, float factor_step, float* room);
  // Of the payload what the factors take, about.
  double factor_bytes() const;
  // Fills `symbols` with those of the rest.
  Counted quantize(float step, std::uint8_t* symbols) const;
  // Finds the tables for these and the factors' symbols; returns the bytes of the payload, about: 1
  // where all elements are 0.
  double finish(const Counted& counted, AdaptiveTables* tables) const;
  // States of rANS for a payload of so many bytes.
  std::size_t lanes(double bytes) const;

  // The factors' numbers, V first.
  std::vector<SymbolMatrix> factor_symbols(std::vector<std::uint8_t>* symbols) const;

 private:
  const float* x_;
  const float* rest_;
  Shape2 shape_;
  bool turned_;
  LowRank low_rank_;
  std::uint64_t factor_counts_[kSymbolCounts] = {};
};

// Bits of the excesses of those symbols that stand for larger magnitudes, about.
double few_excesses(const std::uint64_t* counts);
// How often each symbol occurs, added to `counts`.
void add_counts(const std::uint8_t* symbols, std::size_t n, std::uint64_t* counts);
// The squared error in squares of the step.
double error_of(const float* x, const std::uint8_t* symbols, std::size_t n, float step);

// What a bit is worth, in squares of the step: the slope of error over rate at low rates.
inline constexpr double kBitWorth = 0.12;

// How elements are quantized with this step.
DeadZone dead_zone(float step);
// How the factors' numbers are.
DeadZone whole_numbers();

// A tensor as it is to be written.
struct Plan {
  float step = 0;  // 0: all elements become 0; NaN: all become NaN
  Quantized quantized{nullptr, {}};
  std::uint32_t basis = 0;          // of a turned matrix, SharedBasis::check
  std::uint8_t* symbols = nullptr;  // room for them
  Counted counted;                  // of those that are there
  std::uint8_t groups = kAllGroups;
};

}  // namespace gradcomp
