// A tensor on the encoder's way from elements to symbols: the low-rank part is subtracted, and the
// rest is quantized with a dead zone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/adaptive/frequency_tables.hpp"
#include "codecs/adaptive/low_rank.hpp"
#include "codecs/adaptive/matrix_shape.hpp"
#include "codecs/adaptive/symbol_stream.hpp"
#include "codecs/adaptive/zero_groups.hpp"

namespace gradcomp {

// Result of quantizing with a step.
struct SymbolCounts {
  float step = 0;
  std::uint64_t counts[kSymbols] = {};  // of each symbol that is coded
  double excess = 0;                    // bits of all excesses, about
  bool zero_groups = false;             // whether zero groups have no symbols
  FlagCounts flags;                     // if so
};

class Quantized {
 public:
  // `turned`: x is the matrix in a learned basis.
  Quantized(const float* x, MatrixShape shape, bool turned = false)
      : x_(x), rest_(x), shape_(shape), turned_(turned) {}

  const MatrixShape& shape() const { return shape_; }
  const float* x() const { return x_; }
  bool turned() const { return turned_; }
  const LowRank& low_rank() const { return low_rank_; }
  // x without the low-rank part.
  const float* rest() const { return rest_; }

  // Subtracts the low-rank part of this rank. The rest goes to `out`, which rank 0 does not use.
  void take_out(const SampledRows& sampled, std::size_t rank, float factor_step, float* out);
  // Replaces the rest; it must stay valid.
  void set_rest(const float* rest) { rest_ = rest; }
  // Approximate bytes of the factors in the payload.
  double factor_bytes() const;
  // Fills `symbols` (a byte for each element) with those of the rest. Zero groups have symbols
  // where `groups` is nullptr or has no room, or if they are few.
  SymbolCounts quantize(float step, std::uint8_t* symbols, ZeroGroups* groups = nullptr) const;
  // Finds the tables for these symbols and the factors', and, if there are, for the flags. Returns
  // the approximate bytes of the payload; 1 if all elements are 0.
  double finish(const SymbolCounts& counted, FrequencyTables* tables,
                FlagTable* flags = nullptr) const;
  // Whether all levels are 0.
  bool zero_levels(const SymbolCounts& counted) const;
  // Whether all elements are decoded as 0.
  bool all_zero(const SymbolCounts& counted) const;
  // The number of rANS states for a payload of this many bytes.
  std::size_t lanes(double bytes) const;

  // The high numbers of V, then of P, with their symbols in `symbols`.
  std::vector<SymbolMatrix> factor_symbols(std::vector<std::uint8_t>* symbols) const;

 private:
  const float* x_;
  const float* rest_;
  MatrixShape shape_;
  bool turned_;
  LowRank low_rank_;
  std::uint64_t factor_counts_[kSymbols] = {};
};

// Bits of all excesses, estimated from the counts alone.
double few_excesses(const std::uint64_t* counts);
// Adds the number of times that each symbol occurs.
void add_counts(const std::uint8_t* symbols, std::size_t n, std::uint64_t* counts);
// The squared error, in squares of the step.
double error_of(const float* x, const std::uint8_t* symbols, std::size_t n, float step);

// Error that is worth a bit, in squares of the step: the slope of error over rate at low rates.
inline constexpr double kBitWorth = 0.12;

// The quantizer of elements.
DeadZone dead_zone(float step);
// The quantizer of the factors' numbers, which rounds to nearest.
DeadZone whole_numbers();

}  // namespace gradcomp
