// What the encoder of `adaptive` decides before it writes: the step that all tensors of a bucket
// share, and each one's rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/adaptive_low_rank.hpp"
#include "codecs/adaptive_stream.hpp"
#include "codecs/adaptive_tables.hpp"
#include "core/codec.hpp"

namespace gradcomp {

// Smaller tensors travel as they are.
inline constexpr std::size_t kMinAdaptive = 64;
// A band of rows has about so many elements, and contexts and a run of rANS of its own.
inline constexpr std::size_t kBandElements = std::size_t{1} << 20;

// Fields of a payload before the tables; between them and the streams, with a rank, the steps and
// shifts of the factors.
inline constexpr std::size_t kAdaptiveHead = 10;
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

struct Plan {
  float step = 0;  // 0: all elements become 0; NaN: all become NaN
  float factor_step = 0;
  std::uint8_t rank = 0;
  std::uint8_t groups = kAllGroups;

  // As Call::share.
  std::uint64_t pack() const;
  static Plan unpack(std::uint64_t share);
};

// What quantizing with a step has found.
struct Counted {
  float step = 0;
  std::uint64_t counts[kSymbolCounts] = {};  // of each symbol
  double excess = 0;                         // bits of what exceeds the top magnitude, about
};

// A tensor on its way to symbols.
class Quantized {
 public:
  Quantized(const float* x, Shape2 shape) : x_(x), shape_(shape) {}

  const Shape2& shape() const { return shape_; }
  const LowRank& low_rank() const { return low_rank_; }
  // What is left without the low rank part.
  const float* rest() const { return low_rank_.rank == 0 ? x_ : rest_.data(); }

  // Takes out the part of this rank, or nothing.
  Status take_out(const Basis& basis, std::size_t rank, float factor_step);
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
  Shape2 shape_;
  LowRank low_rank_;
  std::vector<float> rest_;
  std::uint64_t factor_counts_[kSymbolCounts] = {};
};

// What a bit is worth, in squares of the step: the slope of error over rate at low rates.
inline constexpr double kBitWorth = 0.12;

// How elements are quantized with this step.
DeadZone dead_zone(float step);
// How the factors' numbers are.
DeadZone whole_numbers();

class RateControl {
 public:
  // With a `rank` of kAuto the one of least cost is chosen. With `points`, groups of elements may
  // become points of a lattice.
  RateControl(double rate, int rank, bool points) : rate_(rate), rank_(rank), points_(points) {}
  static constexpr int kAuto = -1;

  // One plan for each tensor. A bucket takes `rate` bits per element, frames included, where its
  // frames' headers alone do not take more than half of that.
  // Where `alone` is given, the bucket has one tensor: it then is that one, without the part of low
  // rank, and `last` what was found where kSymbolSlot of the scratch has its symbols.
  Status find(Span<const BucketTensor> tensors, Scratch& scratch, Plan* plans,
              Quantized* alone = nullptr, Counted* last = nullptr) const;
  static constexpr std::size_t kSymbolSlot = 2;
  // The basis that encoding a tensor with a plan of a rank above 0 needs.
  Status basis(const float* x, const Shape2& shape, Scratch& scratch, Basis* basis) const;

 private:
  struct Candidate;

  std::size_t max_rank(const Shape2& shape) const;
  // Those to choose from: at first all, then those around the rank chosen last.
  std::vector<std::size_t> ranks(const Candidate& candidate, bool first) const;
  // The rank that costs least at this step.
  void choose_rank(Candidate* candidate, const std::vector<std::size_t>& ranks, float step) const;

  double rate_;
  int rank_;
  bool points_;
};

}  // namespace gradcomp
