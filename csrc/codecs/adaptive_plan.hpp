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
// shifts of the factors, and of a shared basis which it is.
inline constexpr std::size_t kAdaptiveHead = 10;
inline constexpr std::size_t kSharedHead = 5;
inline std::size_t factor_fields(std::size_t rank, bool shared) {
  if (rank == 0) return 0;
  return shared ? kSharedHead + 2 + rank : 2 + 3 * rank;
}

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
  Quantized(const float* x, Shape2 shape) : x_(x), rest_(x), shape_(shape) {}

  const Shape2& shape() const { return shape_; }
  const float* x() const { return x_; }
  const LowRank& low_rank() const { return low_rank_; }
  // What is left without the low rank part.
  const float* rest() const { return rest_; }

  // Takes out the part of this rank, or nothing. `room` is for the rest, where there is a rank.
  void take_out(const Basis& basis, std::size_t rank, float factor_step, float* room);
  void take_out(const SharedBasis& basis, std::size_t rank, float factor_step, float* room);
  // Of the payload what the factors take, about.
  double factor_bytes() const;
  // Fills `symbols` with those of the rest.
  Counted quantize(float step, std::uint8_t* symbols) const;
  // Finds the tables for these and the factors' symbols; returns the bytes of the payload, about: 1
  // where all elements are 0.
  double finish(const Counted& counted, AdaptiveTables* tables) const;
  // States of rANS for a payload of so many bytes.
  std::size_t lanes(double bytes) const;

  // The factors' numbers, V first where it is sent.
  std::vector<SymbolMatrix> factor_symbols(std::vector<std::uint8_t>* symbols) const;

 private:
  // Makes the rest one without low_rank_.
  void subtract(float* room);

  const float* x_;
  const float* rest_;
  Shape2 shape_;
  LowRank low_rank_;
  std::uint64_t factor_counts_[kSymbolCounts] = {};
};

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
  std::uint8_t* symbols = nullptr;  // room for them
  Counted counted;                  // of those that are there
  std::uint8_t groups = kAllGroups;
};

// What the search leaves of a tensor for that of the next step, BucketTensor::carried.
struct Carried {
  float step = 0;         // of the bucket, in root mean squares of its elements; 0: none yet
  float factor_step = 0;  // in steps
  float rank = 0;         // of a shared basis: less than 0
  float due = 0;          // steps until ranks are tried again
  float gain = 0;         // the bucket's bytes for each that samples had promised

  static constexpr std::size_t kNumbers = 5;
  static Carried from(Span<const float> numbers);
  void store(Span<float> numbers) const;
  // Whether to begin from it, whatever its numbers are.
  bool usable() const;
};

class RateControl {
 public:
  // With a `rank` of kAuto the one of least cost is chosen. With `points`, groups of elements may
  // become points of a lattice.
  RateControl(double rate, int rank, bool points) : rate_(rate), rank_(rank), points_(points) {}
  static constexpr int kAuto = -1;

  // One plan for each tensor, with memory of the scratch. A bucket takes `rate` bits per element,
  // frames included, where its frames' headers alone do not take more than half of that.
  Status find(Span<const BucketTensor> tensors, Scratch& scratch, std::vector<Plan>* plans) const;
  static constexpr std::size_t kSymbolSlot = 2;

  // The most directions that are worth keeping of a matrix.
  std::size_t max_shared() const;

 private:
  struct Candidate;
  struct Bucket;

  std::size_t max_rank(const Shape2& shape) const;
  // Those to choose from, of pairs or of a shared basis: at first all, then those around the rank
  // chosen last.
  std::vector<std::size_t> ranks(const Candidate& candidate, bool shared, bool first) const;
  // Finds a sample of a tensor, and directions in it.
  Status sample(Candidate* candidate, std::size_t rank, Scratch& scratch) const;
  // The rank that costs least at this step.
  void choose_rank(Candidate* candidate, bool first, float step) const;
  // Ranks and a first step, by samples.
  Status begin(Bucket* bucket, Scratch& scratch) const;
  // Whether the last step has left what resume() needs.
  bool resumes(const Bucket& bucket) const;
  // The same from what the last step has left.
  Status resume(Bucket* bucket, Scratch& scratch) const;
  // Takes the pairs out of whole tensors.
  static Status take_out(Bucket* bucket, Scratch& scratch);
  // Given a step for levels alone and the bytes there: lets groups become points, with a smaller
  // step, where that costs less.
  static void place_points(Bucket* bucket, float level_step, double level_bytes);

  double rate_;
  int rank_;
  bool points_;
};

}  // namespace gradcomp
