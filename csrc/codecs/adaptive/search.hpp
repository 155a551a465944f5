// What the encoder of `adaptive` decides before it writes: the step that all tensors of a bucket
// share, and each one's rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bucket_codec.hpp"
#include "codecs/adaptive/quantized.hpp"

namespace gradcomp {

// What the search leaves of a tensor for that of the next step, BucketTensor::carried.
struct Carried {
  float step = 0;         // of the bucket, in root mean squares of its elements; 0: none yet
  float factor_step = 0;  // in steps
  float rank = 0;         // of a turned matrix -1 - rank
  float due = 0;          // steps until ranks are tried again
  float gain = 0;         // the bucket's bytes for each that samples had promised

  static constexpr std::size_t kNumbers = 5;
  static Carried from(Span<const float> numbers);
  void store(Span<float> numbers) const;
  // Of the tensor as it travels.
  std::size_t pairs() const;
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

 private:
  struct Candidate;
  struct Bucket;

  std::size_t max_rank(const Shape2& shape) const;
  // Those to choose from: at first all, then those around the rank chosen last.
  std::vector<std::size_t> ranks(const Candidate& candidate, bool first) const;
  // Finds a sample of a tensor, and directions in it.
  Status sample(Candidate* candidate, std::size_t rank, Scratch& scratch) const;
  // The rank that costs least at this step; returns that cost.
  double choose_rank(Candidate* candidate, bool first, float step) const;
  // Lets the next step turn the matrix, or no longer, where that costs less than `cost`.
  Status compare_turned(Candidate* candidate, double cost, float step, Scratch& scratch) const;
  // Ranks and a first step, by samples.
  Status begin(Bucket* bucket, Scratch& scratch) const;
  // Whether the last step has left what resume() needs.
  bool resumes(const Bucket& bucket) const;
  // The same from what the last step has left.
  Status resume(Bucket* bucket, Scratch& scratch) const;
  // Turns the matrices that are to be; raises `largest` to their largest magnitude.
  static Status turn_all(Bucket* bucket, float* largest, Scratch& scratch);
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
